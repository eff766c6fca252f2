"""The records that cross file boundaries: Sample -> Run -> Verdict. Standard library only.

A Run is what `store.py` reads from disk; a Verdict is what `gate.judge` makes of Runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = 1  # version of everything stored


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One verify step (k >= 1) or step without a draft (k == 0): see engine.api.Step."""

    k: int
    accepted: int  # raw: before any trimming at a stop or limit
    accepted_trimmed: int  # drafts that are in the output
    cut: str = ""  # "" | "stop" | "limit"
    confidence: tuple[float, ...] = ()
    forced: bool = False  # `accepted` was drawn, not verified
    rejected: tuple[str, ...] = ()  # the drafts after the accepted ones as text, where the engine tells them


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """What a server tells of one request in place of its steps: totals. `steps` None where it does not say.

    `trimmed` where the accepted drafts were only counted as far as they are in the text.
    """

    steps: int | None
    accepted: int
    drafts: int
    trimmed: bool = False


class Bucket(StrEnum):
    """What became of a sample. Only an answered one is right or wrong; the others are not "wrong"."""

    ANSWERED = "answered"
    NO_ANSWER = "no answer"  # a whole text without a number
    TRUNCATED = "truncated"  # the token limit came before an answer
    TRUNCATED_IN_THINKING = "truncated in thinking"
    STOP_CUT = "stop cut"  # a stop string fired before an answer
    EMPTY = "empty"  # tokens, but no text
    ZERO_TOKENS = "zero tokens"  # not even a token: NaN logits are suspected
    REASONING_ONLY = "reasoning only"
    DEGENERATE = "degenerate"  # a loop, one token again and again, a flood of digits
    FAILED = "failed"  # the request came to nothing
    TIMEOUT = "timeout"
    FORCED = "forced"  # acceptance was drawn, so the text means nothing and is neither kept nor scored


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalScore:
    """A text read by evalkit's own rule (`scoring.canonical`), beside lm-eval's two readings.

    `correct` is None where there is no answer to grade. `reason` says where the answer was read (marker, boxed,
    phrase, last number) or why there is none; `notes` what was taken off (currency, separators, thinking ...);
    `disagreement` why lm-eval's readings and this one do not agree, "" where they do.
    """

    value: str = ""  # exact: 1000, 0.5, 1/3; "" for none
    raw_span: str = ""  # the characters it was read from
    correct: bool | None = None
    bucket: Bucket = Bucket.NO_ANSWER
    reason: str = ""
    notes: tuple[str, ...] = ()
    disagreement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One document with its completion and its scores.

    `scores` maps a filter's name (strict-match, flexible-extract) to 0.0 or 1.0, `extracted` to the text
    that the filter found. A failed request has `error` set and no scores: it is not a wrong answer.
    """

    doc_id: int
    doc_hash: str
    prompt_hash: str
    question: str
    gold: str
    text: str = ""
    finish_reason: str = ""  # stop | length; "" when the request failed
    stop_hit: str = ""
    tokens: int = 0  # emitted
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    steps: tuple[StepRecord, ...] = ()
    pieces: tuple[str, ...] = ()  # the text of each emitted token, where the engine tells it
    gaps: tuple[float, ...] = ()  # top-two logit gap of the target at each of them, to 3 digits
    scores: Mapping[str, float] = field(default_factory=dict)
    extracted: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    forced: bool = False  # acceptance was drawn, not verified
    category: str = ""  # the document's own category or template, where it has one
    canonical: CanonicalScore | None = None  # None in runs stored before it existed
    reasoning: str = ""  # thinking that a server sent in a field of its own: kept, never graded
    counts: RequestCounts | None = None  # of a server that tells totals and no steps
    attempts: int = 1  # requests sent for it; more than one where a fault was repaired


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The sequential rule that a run was made under (see `stats.SequentialPaired`), and how it stood at the end.

    `seed` draws the order in which the documents are asked; `baseline_sha` is of the questions, prompts and scores
    compared with. `state` is a `stats.Stop` in words: "go on" as long as nothing is decided.
    """

    margin: float
    alpha: float
    beta: float
    final_share: float  # part of alpha kept for the test of all pairs
    planned: int
    seed: int
    baseline: str  # its run's id
    baseline_sha: str
    state: str = "go on"
    seen: int = 0
    up: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of one cell.

    `cell` is the setting as asked for; `fingerprint` what must agree for two runs to be comparable
    (hashes of target, draft and task, prompt settings, sampling, K, quant mode ...); `provenance` where
    and with what it ran (commit, versions, device, times). All three hold plain JSON values.
    """

    id: str
    complete: bool
    cell: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    provenance: Mapping[str, Any]
    samples: tuple[Sample, ...]
    expected: int  # samples the run was to have
    task_size: int  # samples the whole task has; a run of fewer can never certify
    seconds: float = 0.0
    output_tokens: int = 0
    counters: Mapping[str, Any] = field(default_factory=dict)  # the engine's own
    stopping: Stopping | None = None  # of a run with --stop-early
    stopped: str = ""  # why it ended before its last sample; such a run is complete with fewer than `expected`

    @property
    def forced(self) -> bool:
        """Whether acceptance was drawn, by the setting or in any sample: nothing of it is evidence."""
        return self.cell.get("verify") == "forced" or any(s.forced for s in self.samples)


class Outcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


EXIT_CODE = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 3}  # 2 is an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison. `message` is one sentence with the numbers; `numbers` are the same for machines."""

    name: str
    outcome: Outcome
    expected: str
    found: str
    message: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """What a verdict compared with, as it can be found again: its role (baseline, golden, scores), its file's or run's
    name, where that lay, and the hash of what it holds (compared.standard_sha)."""

    role: str
    name: str
    place: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a list of checks: fail if any fails, else inconclusive if any is, else pass."""

    outcome: Outcome
    checks: tuple[Check, ...]
    run_id: str
    notes: tuple[str, ...] = ()  # what a reader must know: a subset, a reference not comparable ...
    standards: tuple[Standard, ...] = ()  # what the checks compared with; empty in verdicts of before it was recorded
