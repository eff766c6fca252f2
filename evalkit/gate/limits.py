"""GateSpec: the losses that are accepted, fixed before the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalkit.answers import AnswerLimits
from evalkit.errors import EvalkitError

ANY_OR_SAME = ("any", "same")

# What a specification can demand, and the names of the checks that answer it (a name with a space at its end: any check
# that begins so).
DEMANDS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "published": "reference ",
    "floor": "floor",
    "length": "accepted length",
    "distribution": "accepted drafts distribution",
    "positions": "accept rate by position",
    "lossless": "lossless",
    "layout": "layout",
    "paths": "path ",
    "age": "age",
}
OF_ACCEPTANCE = ("length", "distribution", "positions")  # not asked of a run at K=0


@dataclass(frozen=True, slots=True, kw_only=True)
class PathShare:
    """A path of the engine (Mono ...) and the share of decode steps it must have served, a fraction of 1."""

    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A published score to be compared with, and the loss that is accepted against it (None: `score_margin`)."""

    name: str
    margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSpec:
    """The losses that are accepted, fixed before the run. Shares are fractions of 1."""

    accuracy_margin: float = 0.01  # strict-match, paired with the baseline
    score_margin: float = 0.02  # strict-match, against a published score
    length_margin: float = 0.05  # accepted length, relative to golden
    distribution_margin: float = 0.05  # tokens a step lost at any positions, relative to golden's accepted length
    alpha: float = 0.05  # one-sided, of each check
    max_failed: float = 0.0  # share of requests
    max_truncated: float = 0.01  # share of answers
    min_samples: int = 100  # fewer can never pass
    assumed_golden_se: float = 0.025  # relative, for a golden that publishes none: 0.1 tokens of 4.04 at K=7
    suspicious_ratio: float = 1.10  # accepted length over golden above which the reader is warned
    answers: AnswerLimits = field(default_factory=AnswerLimits)
    position_margin: float = 0.05  # share of the steps that may be lost at any one position
    floor: float | None = None  # strict-match, absolute
    against: tuple[Against, ...] = ()  # published scores asked for; none: those that gate by themselves
    paths: tuple[PathShare, ...] = ()  # engine paths that must have served the steps
    max_age_days: float | None = None
    tie_gap: float = 0.1  # top-two logit gap under which a divergence in reduced precision is rounding
    golden_draft: str = "any"  # any: golden judges the draft; same: a golden of another draft is refused
    golden_quant: str = "any"  # the same of the quant mode
    demands: tuple[str, ...] = ()  # kinds of checks (see DEMANDS) that fail when nothing was compared

    def __post_init__(self) -> None:
        for name in ("accuracy_margin", "score_margin", "length_margin", "distribution_margin", "position_margin",
                     "alpha", "assumed_golden_se"):  # fmt: skip
            if not 0 < getattr(self, name) < 0.5:  # NaN is in no range
                raise EvalkitError(f"gate: {name} is {getattr(self, name)}", "give a fraction above 0 and below 0.5")
        for name in ("max_failed", "max_truncated"):
            if not 0 <= getattr(self, name) < 1:
                raise EvalkitError(f"gate: {name} is {getattr(self, name)}", "give a fraction from 0 to below 1")
        self._check_demands()
        if self.min_samples < 1 or not self.suspicious_ratio > 1:
            raise EvalkitError(f"gate: min_samples is {self.min_samples}, suspicious_ratio {self.suspicious_ratio}")

    def _check_demands(self) -> None:
        if self.floor is not None and not 0 < self.floor < 1:
            raise EvalkitError(f"gate: floor is {self.floor}", "give a fraction above 0 and below 1")
        if self.max_age_days is not None and not self.max_age_days > 0:
            raise EvalkitError(f"gate: max_age_days is {self.max_age_days}", "give a number of days above 0")
        if not 0 <= self.tie_gap < 100:
            raise EvalkitError(f"gate: tie_gap is {self.tie_gap}", "give a gap of logits from 0")
        for name in ("golden_draft", "golden_quant"):
            if getattr(self, name) not in ANY_OR_SAME:
                raise EvalkitError(f"gate: {name} is {getattr(self, name)!r}", f"use {' or '.join(ANY_OR_SAME)}")
        for name in [a.name for a in self.against if a.margin is not None and not 0 < a.margin < 0.5]:
            raise EvalkitError(f"gate: the margin against {name} is no fraction above 0 and below 0.5")
        if odd := [d for d in self.demands if d not in DEMANDS]:
            raise EvalkitError(f"gate: unknown check {odd[0]!r}", f"use one of {', '.join(DEMANDS)}")
        for path in self.paths:
            if not 0 < path.share <= 1:
                raise EvalkitError(f"gate: path {path.name} has a share of {path.share}", "give a fraction above 0")
