"""GateSpec: the losses that are accepted, fixed before the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from evalkit.answers import AnswerLimits
from evalkit.errors import EvalkitError


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

    def __post_init__(self) -> None:
        for name in ("accuracy_margin", "score_margin", "length_margin", "distribution_margin", "alpha",
                     "assumed_golden_se"):  # fmt: skip
            if not 0 < getattr(self, name) < 0.5:  # NaN is in no range
                raise EvalkitError(f"gate: {name} is {getattr(self, name)}", "give a fraction above 0 and below 0.5")
        for name in ("max_failed", "max_truncated"):
            if not 0 <= getattr(self, name) < 1:
                raise EvalkitError(f"gate: {name} is {getattr(self, name)}", "give a fraction from 0 to below 1")
        if self.min_samples < 1 or not self.suspicious_ratio > 1:
            raise EvalkitError(f"gate: min_samples is {self.min_samples}, suspicious_ratio {self.suspicious_ratio}")
