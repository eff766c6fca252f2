"""The names that a check can have, for who asks for one by name."""

from __future__ import annotations

CHECKS = (
    "completeness", "requests", "truncation", "served setting", "stop cut", "empty answers", "reasoning only",
    "degenerate answers", "scores", "stored reading", "protocol", "format", "accuracy", "unanswered", "reference",
    "floor", "baseline floor", "score", "real acceptance", "step counts", "acceptance", "acceptance source", "draft",
    "accepted length", "accepted drafts distribution", "accept rate by position", "lossless", "layout", "age",
)  # fmt: skip
BEGIN = ("reference ", "path ")  # of names that go on with a published score or an engine's path


def is_check(name: str) -> bool:
    """Whether some check can be called this."""
    return name in CHECKS or any(name.startswith(begin) and name != begin for begin in BEGIN)
