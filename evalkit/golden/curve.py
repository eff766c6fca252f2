"""GoldenValue and Curve: what a golden says at one K and over all of them; look-up and selection, never a guess."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from evalkit.acceptance.distribution import implied_groups
from evalkit.baseline import mark
from evalkit.config import DRAFTS, TARGETS
from evalkit.errors import EvalkitError
from evalkit.fingerprint import EXTRA, VERIFY, acceptance_fingerprint, extra_facts, verify_facts
from evalkit.golden.header import Header
from evalkit.online_quant import FIELD as ONLINE
from evalkit.records import Run
from evalkit.servers.spec import METHODS
from evalkit.units import AcceptedLength

CURVE_MARKS = ("target_sha", "draft_sha", "draft_width", "temperature", "task_sha", "quant")
COMPARED_MARKS = ("target_sha", "draft_width", "temperature", "task_sha")  # of a judged run with its golden
FURTHER_MARKS = (  # compared where the golden records them: files of before have none
    "tokenizer_sha", "prompts_sha", "shots", "template", "endpoint", "stop", "max_tokens", "top_p", "top_k", "bos",
    "draft_method",
)  # fmt: skip
NOTED_MARKS = ("draft_sha", "quant", ONLINE)  # may differ, since they are what is judged; the reader is told


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenValue:
    """Accepted length (tokens a step, the target's own included) at one K.

    se, histogram, counters and fingerprint are None or empty for an imported curve, which publishes none, covariance
    (of the survival S_1..S_K that the histogram gives, clustered by document) also for one recorded before it was;
    temperature and dataset are what such a curve's comments say, None and "" where they do not.
    """

    k: int
    accepted_length: float
    mode: str
    source: str
    se: float | None = None
    clusters: int | None = None
    steps: int | None = None
    interval: tuple[float, float] | None = None
    histogram: tuple[int, ...] | None = None
    covariance: tuple[tuple[float, ...], ...] | None = None
    run_id: str = ""
    fingerprint: Mapping[str, Any] | None = None
    counters: Mapping[str, int] | None = None  # requests, drafts, accepted, accepted_trimmed, ...
    temperature: float | None = None
    dataset: str = ""

    def __post_init__(self) -> None:
        where = f"{self.source} at K={self.k}"
        if type(self.k) is not int or self.k < 1:
            raise EvalkitError(f"{self.source} has a value for K={self.k!r}, expected a whole number from 1")
        if type(self.accepted_length) not in (int, float) or not 1 <= self.accepted_length <= self.k + 1:
            raise EvalkitError(
                f"{where} is {self.accepted_length!r}, expected a number from 1 to {self.k + 1}",
                "a curve holds accepted length with the target's own token, not a rate and not accepted drafts",
            )
        if self.se is not None and not (math.isfinite(self.se) and self.se >= 0):
            raise EvalkitError(f"{where} has a standard error of {self.se}")
        if self.se is not None and (self.clusters is None or self.clusters < 2):
            raise EvalkitError(f"{where} has a standard error of {self.clusters} samples")
        if self.histogram is not None:
            self._check_histogram(where, self.histogram)
        if self.covariance is not None:
            self._check_covariance(where, self.covariance)

    def _check_histogram(self, where: str, histogram: tuple[int, ...]) -> None:
        if len(histogram) != self.k + 1:
            raise EvalkitError(f"{where} has a histogram of {len(histogram)} values, expected {self.k + 1}")
        if any(type(n) is not int or n < 0 for n in histogram) or not sum(histogram):
            raise EvalkitError(f"{where} has a histogram of {list(histogram)}, expected counts")

    def _check_covariance(self, where: str, rows: tuple[tuple[float, ...], ...]) -> None:
        if self.histogram is None or self.se is None:
            raise EvalkitError(f"{where} has a covariance without a histogram and its standard error")
        if len(rows) != self.k or any(len(row) != self.k for row in rows):
            raise EvalkitError(f"{where} has a covariance of {len(rows)} rows, expected {self.k} by {self.k}")
        values = [x for row in rows for x in row]
        if not all(type(x) in (int, float) and math.isfinite(x) for x in values):
            raise EvalkitError(f"{where} has a covariance that is not all numbers")
        symmetric = all(math.isclose(rows[i][j], rows[j][i], abs_tol=1e-12) for i in range(self.k) for j in range(i))
        if not symmetric or not math.isclose(math.sqrt(max(sum(values), 0)), self.se, rel_tol=1e-3, abs_tol=1e-6):
            raise EvalkitError(
                f"{where} has a covariance that its standard error {self.se} contradicts", "record it again"
            )

    def check_mean(self) -> None:
        """Refuses a value that its own histogram contradicts (by more than its two published decimals)."""
        if self.histogram is None:
            return
        said = 1 + sum(a * n for a, n in enumerate(self.histogram)) / sum(self.histogram)
        if abs(said - self.accepted_length) > 0.0051:
            raise EvalkitError(
                f"{self.source} at K={self.k} is {self.accepted_length}, its histogram gives {said:.4f}",
                "record it again",
            )

    @property
    def place(self) -> str:
        """What people call its source."""
        return place_of(self.source)

    def length(self) -> AcceptedLength:
        """The value as a typed accepted length."""
        return AcceptedLength(float(self.accepted_length), self.k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The golden values of one model, by mode and K."""

    model: str
    source: str  # the file's name
    values: Mapping[str, Mapping[int, GoldenValue]]
    header: tuple[str, ...] = ()  # comment lines before the values: where an imported curve came from
    said: Header | None = None  # the same, parsed

    @property
    def place(self) -> str:
        """What people call its source."""
        return place_of(self.source)

    def lengths(self, mode: str) -> dict[int, float]:
        return {k: v.accepted_length for k, v in sorted(self.values[mode].items())}

    def falls(self, mode: str) -> list[tuple[int, int]]:
        """Neighbouring K between which the curve falls: noise of a small prompt set, or a draft past its best."""
        lengths = self.lengths(mode)
        return [(a, b) for a, b in pairwise(lengths) if lengths[b] < lengths[a]]

    def implied(self, mode: str, k: int | None = None) -> str:
        """Why the survival that the curve implies up to `k` (default: its last K) is unusable; "" when it is."""
        known = {x: v for x, v in self.lengths(mode).items() if k is None or x <= k}
        if len(known) < 2:
            return "only one K"
        try:
            implied_groups(known)
        except ValueError as e:
            return str(e)
        return ""

    def implied_to(self, mode: str) -> int:
        """The largest K up to which the implied survival is usable; 0 when there is none."""
        return max((k for k in list(self.lengths(mode))[1:] if not self.implied(mode, k)), default=0)


def place_of(source: str) -> str:
    """A curve's file, or the run that it was taken from."""
    return f"golden/{source}" if source.endswith((".yaml", ".yml")) else f"run {source}"


def lookup(curve: Curve, k: int, mode: str | None = None) -> GoldenValue:
    """The value at exactly this K. `mode` is needed where the curve has several."""
    modes = list(curve.values)
    if mode is None and len(modes) == 1:
        mode = modes[0]
    if mode is None or mode not in curve.values:
        raise EvalkitError(f"{curve.place} has modes {modes}, asked for {mode}", "name one of them")
    if k not in curve.values[mode]:
        have = ", ".join(f"K={x}" for x in sorted(curve.values[mode]))
        raise EvalkitError(
            f"{curve.place} has no value at K={k} for {mode} (has {have}); nothing is interpolated",
            record_command(curve.model, k, curve.said.draft if curve.said and curve.said.draft in DRAFTS else "")
            if curve.model in TARGETS
            else f"judge a run at a K that it has, or record it: evalkit golden record RUN_AT_K{k} --output FILE",
        )
    return curve.values[mode][k]


def pick(curves: Sequence[Curve], *, model: str, method: str | None = None, variant: str | None = None) -> Curve:
    """The one curve that fits, out of many files. What fits several curves, or none, is an error that names them.

    `method` is mtp, eagle3, dspark ... as the comments say, of a recorded curve its draft; `variant` is a file's name
    without .yaml, or a word of its speculative configuration such as draft_sample_method=probabilistic.
    """
    fits = [c for c in curves if same_model(c.model, model)]
    if not fits:
        have = ", ".join(sorted({c.model for c in curves})) or "none"
        raise EvalkitError(f"no golden curve of {model} (there is {have})", "name one of them")
    for what, asked, has in (("method", method, _method), ("variant", variant, _variants)):
        if asked is not None:
            kept = [c for c in fits if asked in has(c)]
            if not kept:
                have = ", ".join(sorted({word for c in fits for word in has(c)})) or "none"
                raise EvalkitError(
                    f"no golden curve of {model} with {what} {asked} (there is {have})", "name one of them"
                )
            fits = kept
    if len(fits) > 1:
        names = ", ".join(
            f"{c.source} ({'; '.join(sorted({*_method(c), *_words(c)})) or 'says nothing'})" for c in fits
        )
        raise EvalkitError(f"{len(fits)} golden curves of {model} fit: {names}", "name the one file")
    return fits[0]


def same_model(curve: str, target: str) -> bool:
    """Whether a curve's model is a run's target: in letters and digits, of a path or a hub's name the last part.

    InferenceX writes minimaxm3.1flash where a server says MiniMaxAI/MiniMax-M3.1-Flash.
    """
    here, there = (_letters(name.rstrip("/").rsplit("/", 1)[-1]) for name in (curve, target))
    return bool(here) and here == there


def _letters(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _method(curve: Curve) -> set[str]:
    """What the comments call the method; a recorded curve's name its draft instead."""
    word = (curve.said.method or curve.said.draft) if curve.said else ""
    return {word} if word else set()


def _words(curve: Curve) -> set[str]:
    return {f"{a}={b}" for a, b in curve.said.speculative.items()} if curve.said else set()


def _variants(curve: Curve) -> set[str]:
    return {curve.source.removesuffix(".yaml"), *_words(curve)}


def differing_marks(value: GoldenValue, run: Run) -> list[str]:
    """The facts a run must share with a golden value and does not; none for a value that states no fingerprint."""
    told = value.fingerprint
    if not told:
        return []
    known = [m for m in FURTHER_MARKS if told.get(m) is not None]
    more = [d.name for d in acceptance_fingerprint(run).differences(told, known)] if known else []
    here = verify_facts(run.cell) | extra_facts(run.cell)
    more += [name for name in (*VERIFY, EXTRA) if told.get(name) != here.get(name)]
    return [m for m in COMPARED_MARKS if told.get(m) != mark(run, m)] + more


def other_method(curve: Curve, value: GoldenValue, run: Run) -> str:
    """`draft_method ngram / dspark` where a curve is of another method than a run's draft; "" where it is not, or where
    one of them does not say. Curves recorded before the method was are told by what their comments call the draft."""
    if not curve.said or (value.fingerprint or {}).get("draft_method") is not None:  # the second is a mark
        return ""
    named = DRAFTS.get(curve.said.draft)
    there = named.method if named else curve.said.method if curve.said.method in METHODS else ""
    here = run.fingerprint.get("draft_method")
    return f"draft_method {there} / {here}" if there and here in METHODS and there != here else ""


def said_otherwise(value: GoldenValue, run: Run) -> list[str]:
    """In what a curve without a fingerprint is of another workload than a run, as far as its comments say it:
    `temperature 1 / 0`. Nothing for what they leave open."""
    if value.fingerprint:
        return []
    here, task = mark(run, "temperature"), str(run.cell.get("task"))
    out = []
    if None not in (value.temperature, here) and value.temperature != here:
        out.append(f"temperature {value.temperature:g} / {here:g}")
    there, ours = (_letters(word) for word in (value.dataset, task.rsplit("/", 1)[-1].removesuffix(".yaml")))
    if there and ours and there not in ours and ours not in there:
        out.append(f"data {value.dataset} / {task}")
    return out


def record_command(target: str, k: int, draft: str = "") -> str:
    return f"evalkit golden record --target {target}{f' --draft {draft}' if draft else ''} --k {k}"
