"""AcceptanceStats, the record of all acceptance figures of one run, and what each of them means.

Definitions (as InferenceX, vLLM and ATOM count them):
- a *verify step* has k >= 1 drafts proposed; steps without a draft are counted apart and enter no length or rate;
- accepted length = 1 + sum(accepted) / steps, a ratio of sums over all steps, the target's own token counted;
- acceptance rate = sum(accepted) / sum(proposed); it falls as K grows, by construction;
- survival S_j = share of steps with at least j accepted drafts; accepted length = 1 + S_1 + ... + S_K;
- conditional rate at j: of the blocks whose first j - 1 drafts were all accepted, the share that accept draft j too.
  Drafts past a stop are left out: the answer was over, so none of them was rejected; nor was one that was never
  proposed (columns.Steps.judged_at). Where all blocks are whole it is S_j / S_(j-1), and that is all that a server's
  counters can tell;
- histogram counts the steps with 0, 1, ..., K accepted drafts;
- *raw* is before any trimming at a stop or limit (the published definition), *trimmed* after it;
- *emitted per step* is output tokens over all forward passes, drafted or not: what speed depends on;
- the uncertainty treats a document, with all its steps, as one cluster (see stats.clustered_ratio).

Nothing here is NaN: what has no value is None.
"""

from __future__ import annotations

from dataclasses import dataclass

from evalkit import stats
from evalkit.units import AcceptanceRate, AcceptedLength, AcceptedPerStep

FEW_CLUSTERS = 64  # with fewer documents an interval is shown as a hint only


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far the draft's confidence is from what happened, at one position (1..K).

    `conditional`: c_j, over steps whose first j - 1 drafts were accepted, against "draft j was accepted".
    `cumulative`: c_1 * ... * c_j, over all steps that propose j drafts, against "the first j were accepted".
    A step cut at a stop counts up to its last draft in the output: those past a stop were never needed.
    ece_10 and ece_20 are expected calibration errors with 10 and 20 equal bins, as fractions of 1.
    """

    kind: str  # conditional | cumulative
    position: int
    steps: int
    mean_confidence: float
    rate: float
    ece_10: float
    ece_20: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceStats:
    """Acceptance of one run. Lengths are in tokens a step, rates and shares are fractions of 1.

    For a run without verify steps (K=0, or a draft that never proposed) every figure is None and the
    tuples are empty; the counts are 0. The headline figures have typed forms: `length()`, `rate()`,
    `per_step()` (see evalkit.units); the plain numbers are for arrays and for printing.
    """

    k: int  # the largest K asked for
    requests: int  # samples with at least one verify step
    steps: int  # verify steps
    drafts: int  # proposed
    accepted: int  # raw
    accepted_trimmed: int
    accepted_length: float | None
    accepted_length_trimmed: float | None  # 1 + drafts in the output / steps
    emitted_per_step: float | None  # output tokens after the first, over all steps; what speed depends on
    mean_of_requests: float | None  # plain mean of each request's accepted length: not the published figure
    acceptance_rate: float | None
    survival: tuple[float, ...]  # S_1 .. S_K
    conditional: tuple[float | None, ...]  # None after a position nothing survived to
    histogram: tuple[int, ...]  # steps with 0 .. K accepted drafts
    se: float | None  # of accepted_length, clustered by document
    interval: stats.Interval | None  # 95 %
    clusters: int
    design_effect: float | None
    steps_without_draft: int
    cut_at_stop: int  # steps
    cut_at_limit: int  # steps
    cut_share: float | None
    forced: bool  # a sample says that acceptance was drawn
    looks_forced: bool  # the histogram says so
    calibration: tuple[Calibration, ...]
    useful_k: int = 0  # last position that more than 5 % of the steps reach
    constant_conditional: bool = False  # every position has one conditional rate, and documents do not differ
    longest_answer: int = 0  # tokens: what the figures were measured on
    source: str = "steps"  # what the figures are made of
    unit: str = "samples"  # what `clusters` counts
    problems: tuple[str, ...] = ()  # why they are not evidence (of a server that counts for itself)
    past_stop: int = 0  # drafts of blocks cut by a stop that lie past it: in no conditional rate
    uncertainty: stats.Estimate | None = None  # of accepted_length, with what skewed documents do to its tests

    def estimate(self) -> stats.Estimate | None:
        """Accepted length with its clustered standard error; None when there is no such error."""
        if self.accepted_length is None or self.se is None:
            return None
        plain = stats.Estimate(value=self.accepted_length, se=self.se, df=self.clusters - 1)
        return self.uncertainty or plain

    def length(self) -> AcceptedLength | None:
        """Accepted length as a typed value, in tokens a step with the target's own."""
        return None if self.accepted_length is None else AcceptedLength(self.accepted_length, self.k)

    def per_step(self) -> AcceptedPerStep | None:
        """Accepted drafts a step, without the target's own token."""
        return None if self.accepted_length is None else AcceptedPerStep(self.accepted / self.steps, self.k)

    def rate(self) -> AcceptanceRate | None:
        """Accepted over proposed drafts. Where steps proposed fewer than K, not the length's own rate of K."""
        return None if self.acceptance_rate is None else AcceptanceRate(self.acceptance_rate, self.k)

    @property
    def by_step(self) -> bool:
        """Whether single steps are known: without them nothing is known of cuts, trimming or steps without a draft."""
        return self.source == "steps"

    def pooled_differs(self) -> bool:
        """Whether the plain mean of requests lies more than 2 % from the pooled length: then both are shown."""
        both = self.accepted_length, self.mean_of_requests
        return None not in both and abs(both[1] / both[0] - 1) > 0.02  # type: ignore[operator]


def nothing(k: int, without: int, forced: bool) -> AcceptanceStats:
    """The figures of a run without a verify step."""
    return AcceptanceStats(
        k=k, requests=0, steps=0, drafts=0, accepted=0, accepted_trimmed=0, accepted_length=None,
        accepted_length_trimmed=None, emitted_per_step=None, mean_of_requests=None, acceptance_rate=None, survival=(),
        conditional=(), histogram=(), se=None, interval=None, clusters=0, design_effect=None,
        steps_without_draft=without, cut_at_stop=0, cut_at_limit=0, cut_share=None, forced=forced, looks_forced=False,
        calibration=(),
    )  # fmt: skip
