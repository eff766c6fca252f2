"""Signs that acceptance was drawn to hit a number ("synthetic acceptance") and not verified by the target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

FORCED_MIN_STEPS = 200  # fewer steps cannot show that acceptance was drawn
CONSTANT_MIN_STEPS = 1000
FLAGS = (  # what engines call it; a name matches whatever stands before or after it, and with - for _
    "synthetic_acceptance", "spec_decode_acceptance_length", "simulate_acc", "force_num_accepted_tokens",
    "forced_acceptance", "forced_length",
)  # fmt: skip
WORDS = re.compile(
    r"(synthetic|simulated|forced)[ _-]accept|rejection[ _-](sample|sampling)[ _-]method\W+synthetic"
    r"|simulat\w* acc(ept|_len)",
    re.IGNORECASE,
)
OFF = ("", "0", "0.0", "-1", "off", "false", "none")
EVEN = 0.5  # design effect under which documents differ less than independent steps would
EVEN_MIN_CLUSTERS = 50
NEAR_GOLDEN = 0.002  # tokens: a mean this near a golden number is hardly chance


def looks_forced(histogram: Sequence[int] | np.ndarray) -> bool:
    """True when only one value or two adjacent values ever occur over at least 200 steps, as when an engine
    draws acceptance to hit a mean (two-point histogram) or a fixed number.

    Not called forced: K=1, where two values are all there is; a draft that is never accepted; and 0-or-1 with
    fewer than 100 ones, which a very weak real draft can give. A draft that is the target itself, always
    accepted, is called forced: its run shows nothing about speculation either.
    """
    counts = [int(x) for x in histogram]
    if len(counts) <= 2 or sum(counts) < FORCED_MIN_STEPS:
        return False
    seen = [i for i, count in enumerate(counts) if count]
    if seen[-1] - seen[0] > 1 or seen == [0]:
        return False
    return not (seen[0] == 0 and counts[1] < FORCED_MIN_STEPS // 2)


def constant_conditional(histogram: Sequence[int] | np.ndarray, design_effect: float | None) -> bool:
    """True when every position has the same conditional rate within chance and documents do not differ, as when
    an engine draws each draft with one fixed rate (geometric spread).

    Asked: 1000 steps, K of at least 3, three positions that 100 steps reached, no evidence (chi-square, p > 0.05)
    against one rate, rates within 6 points of each other, and a design effect under 1.3: real prompts differ, draws
    do not. A real draft may look like this, so alone it proves nothing.
    """
    counts = np.array([int(x) for x in histogram], dtype=np.float64)
    if len(counts) < 4 or counts.sum() < CONSTANT_MIN_STEPS or design_effect is None or design_effect > 1.3:
        return False
    reached = counts[::-1].cumsum()[::-1]
    before, after = reached[:-1], reached[1:]
    many = before >= 100
    if many.sum() < 3:
        return False
    before, after = before[many], after[many]
    rate = float(after.sum() / before.sum())
    if not 0 < rate < 1 or float(np.ptp(after / before)) > 0.06:
        return False
    statistic = float(((after - rate * before) ** 2 / (before * rate * (1 - rate))).sum())
    return float(special.chdtrc(len(before) - 1, statistic)) > 0.05


def near_golden(accepted_length: float | None, golden_lengths: Sequence[float]) -> float | None:
    """The golden number that a mean lies within 0.002 tokens of; None when there is none."""
    if accepted_length is None:
        return None
    near = [g for g in golden_lengths if abs(accepted_length - g) <= NEAR_GOLDEN]
    return min(near, key=lambda g: abs(accepted_length - g)) if near else None


def told_forced(*facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What the settings and the server's own words say of forced acceptance: a flag that is on, or a sentence.

    `facts` are what a run stores of its launch: cell, provenance (flags, environment, command, server's answers),
    counters. Each sign names the place.
    """
    return tuple(dict.fromkeys(sign for part in facts for sign in _told("", part)))


def _told(where: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if _in_words(str(key), inner):
                yield f"flag {key}={inner}"
            elif not _is_flag(str(key)):
                yield from _told(f"{where}.{key}".lstrip("."), inner)
            elif _on(inner):
                yield f"flag {key}={inner}"
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            name, equals, given = inner.partition("=") if isinstance(inner, str) else ("", "", None)
            given = given if equals else value[i + 1] if i + 1 < len(value) else None
            if name.startswith("-") and _in_words(name, given):
                yield f"flag {name}={given}"
            elif name.startswith("-") and _is_flag(name):
                if _on(given):
                    yield f"flag {name}={given}"
            else:
                yield from _told(where, inner)
    elif isinstance(value, str) and WORDS.search(value):
        yield f"{where} says {value[:80]!r}"


def _in_words(name: str, value: Any) -> bool:
    """A setting whose value says it, such as `rejection_sample_method` with `synthetic`."""
    return isinstance(value, str) and WORDS.search(f"{name}={value}") is not None and WORDS.search(value) is None


def _is_flag(word: str) -> bool:
    return any(flag in word.lower().replace("-", "_") for flag in FLAGS)


def _on(value: Any) -> bool:
    return value is not None and value is not False and str(value).strip().lower() not in OFF


def too_even(design_effect: float | None, clusters: int) -> bool:
    """True when documents differ less than independent steps of one law would: something steers the mean.

    A design effect under 0.5 over at least 50 documents. Of real steps it is near or over 1: prompts differ.
    """
    return design_effect is not None and clusters >= EVEN_MIN_CLUSTERS and design_effect < EVEN


def forced_signs(
    histogram: Sequence[int],
    *,
    accepted_length: float | None,
    design_effect: float | None,
    golden_lengths: Sequence[float] = (),
    clusters: int = 0,
) -> tuple[str, ...]:
    """Every sign there is in the counts, in words. The two-point histogram alone is proof enough; so is a mean on a
    golden number together with too little variance (one conditional rate at every position, or documents that differ
    less than chance makes them); each of these alone is only worth a remark."""
    signs = []
    if looks_forced(histogram):
        values = [a for a, count in enumerate(histogram) if count]
        signs.append(f"{' or '.join(map(str, values))} accepted drafts in every one of {sum(histogram)} steps")
    if constant_conditional(histogram, design_effect):
        signs.append("one conditional rate at every position and no difference between documents")
    if too_even(design_effect, clusters):
        signs.append(f"documents differ less than chance makes them (design effect {design_effect:.2f})")
    near = near_golden(accepted_length, golden_lengths)
    if near is not None:
        signs.append(f"accepted length {accepted_length:.4f} is within {NEAR_GOLDEN} of the golden number {near:g}")
    return tuple(signs)
