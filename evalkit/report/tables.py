"""A run and its verdict as tables of text: configuration, checks, scores, buckets, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.config import QuantMode
from engine.errors import EngineError
from evalkit import stats
from evalkit.baseline import FLEXIBLE, STRICT, Baseline, ReferenceScore, mark
from evalkit.disagreement import MEANING
from evalkit.fingerprint import verify_facts
from evalkit.records import Bucket, Run
from evalkit.report import again, text
from evalkit.report.samples import pair, scored
from evalkit.report.text import Table
from evalkit.scoring import score_samples
from evalkit.shares import bucket_counts, drift


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    name: str
    value: str


def quant_mode(run: Run) -> str:
    """The quant mode spelled out, `w=bf16 act=bf16 kv=fp8`; its name alone where the dtype is not known."""
    name, dtype = str(run.cell.get("quant", "")), str(mark(run, "dtype") or "auto")
    if dtype == "auto":
        device = str(mark(run, "device") or "")
        dtype = "float32" if device.startswith("cpu") else "bf16" if device.startswith("cuda") else ""
    try:
        mode = f"{name} ({QuantMode.parse(name, dtype)})"
    except EngineError:
        mode = name or "not recorded"
    online = mark(run, "online_quant_config")
    return f"{mode}, weights quantised after loading: {online}" if online else mode


def sampling(run: Run) -> str:
    if mark(run, "temperature") == 0:
        return "greedy"
    words = ("temperature", "top_p", "top_k", "seed")
    return ", ".join(f"{word.replace('_', '-')} {text.plain(mark(run, word))}" for word in words)


def configuration(run: Run) -> tuple[Fact, ...]:
    """The setting that was run, one fact each."""
    k = run.cell.get("k")
    shots = mark(run, "shots") if run.cell.get("shots") is None else run.cell["shots"]
    shots = run.fingerprint.get("shots") if shots is None else shots
    facts = [("target", run.cell.get("target")), ("draft", run.cell.get("draft") if k else "none"), ("K", k)]
    if k:
        facts.append(("draft width", mark(run, "draft_width")))
    facts += [(name.replace("_", " "), value) for name, value in verify_facts(run.cell).items()]
    facts += [("quant mode", quant_mode(run)), ("task", run.cell.get("task")), ("shots", shots),
              ("sampling", sampling(run)), ("samples", f"{len(run.samples)} of {run.task_size}")]  # fmt: skip
    return tuple(Fact(name=name, value=text.plain(value)) for name, value in facts)


def warnings(run: Run) -> tuple[str, ...]:
    """What makes this run unable to certify anything, in words."""
    out = []
    if run.expected < run.task_size:
        out.append(f"subset: cannot certify ({run.expected} of the task's {run.task_size} samples were asked for)")
    if run.stopped and run.complete:
        out.append(f"stopped early: {run.stopped}; judged by its sequential rule only")
    elif not run.complete or len(run.samples) != run.expected:
        out.append(f"incomplete: cannot certify ({len(run.samples)} of {run.expected} samples are there)")
    if run.forced:
        out.append("forced acceptance: cannot certify (accepted drafts were drawn, not verified)")
    return tuple(out)


def score_names(run: Run) -> tuple[str, ...]:
    """strict-match, flexible-extract, then any other that a sample has."""
    found = {name: None for s in run.samples for name in s.scores}
    return (STRICT, FLEXIBLE, *(name for name in found if name not in (STRICT, FLEXIBLE)))


def score_table(run: Run, baseline: Baseline | None, not_comparable: str = "") -> Table:
    """Each score with its error and interval, and the baseline's on the same questions. `not_comparable` says why
    there is no baseline where there is one of another setting."""
    rows = []
    for name in score_names(run):
        correct, n = scored(run.samples, name)
        row = (name, text.score(correct, n), text.wilson(correct, n))
        both = pair(run, baseline, name)
        if both is None:
            why = "no question in common" if n else "no scored answer"
            why = why if baseline is not None else "no baseline"
            why = "of another setting" if not_comparable else why
            compared = "not comparable" if not_comparable else "not compared"
            rows.append((*row, why, compared, compared, "0"))
            continue
        span = stats.tango_interval(both.up, both.down, both.n)
        difference = f"{text.points((both.up - both.down) / both.n)} ({text.points_interval(span.low, span.high)})"
        before = text.score(both.baseline_correct, both.n)
        rows.append((*row, before, difference, f"{both.down} lost, {both.up} gained", text.count(both.n)))
    return Table(
        name="scores",
        caption="Scores, and the baseline on the same questions",
        columns=(
            "score",
            "this run",
            "95 % (Wilson)",
            "baseline",
            "paired difference (95 %, Tango)",
            "discordant",
            "pairs",
        ),
        align="lrrrrrr",
        rows=tuple(rows),
    )


def reference_table(run: Run, references: Sequence[ReferenceScore]) -> Table:
    """Published scores; a difference only where the two may be compared."""
    rows = []
    for ref in references:
        metric = ref.metric.split(",")[-1]
        correct, n = scored(run.samples, metric)
        why, difference = ref.not_comparable(run), "not compared"
        if not why and n:
            span = stats.two_proportion_interval(correct, n, ref.correct, ref.n)
            value = text.points(correct / n - ref.correct / ref.n)
            difference = f"{value} ({text.points_interval(span.low, span.high)})"
        spread = "no error published" if ref.stderr is None else f"± {ref.stderr:.4f}"
        comparable = f"no: {why}" if why else f"yes, {'judged' if ref.gates else 'shown only'}"
        published = f"{text.share(ref.score)} {spread} ({ref.correct}/{ref.n})"
        rows.append((ref.name, metric, published, comparable, difference, f"{ref.source}; {ref.protocol}"))
    return Table(
        name="references",
        caption="Published reference scores",
        columns=("reference", "score", "published", "comparable", "difference, unpaired (95 %)", "source and protocol"),
        align="llrlrl",
        rows=tuple(rows),
        missing="No published score is known for this run.",
    )


BUCKETS = {
    Bucket.ANSWERED: "an answer was found: it is right or wrong",
    Bucket.NO_ANSWER: "a whole text without a number",
    Bucket.TRUNCATED: "the token limit came before an answer",
    Bucket.TRUNCATED_IN_THINKING: "the token limit came in the thinking",
    Bucket.STOP_CUT: "a stop string fired before an answer",
    Bucket.EMPTY: "tokens, but no text",
    Bucket.ZERO_TOKENS: "not one token: NaN logits are suspected",
    Bucket.REASONING_ONLY: "thinking, and nothing after it",
    Bucket.DEGENERATE: "a loop, one token again and again, or a flood of digits",
    Bucket.FAILED: "no answer came back; not scored, not counted as wrong",
    Bucket.FORCED: "acceptance was drawn: the text means nothing and is not scored",
}
ALWAYS = (Bucket.ANSWERED, Bucket.TRUNCATED, Bucket.EMPTY, Bucket.FAILED)  # shown even where they are 0


def bucket_table(run: Run) -> Table:
    """What became of the requests; the rows add up to all that were expected."""
    total = run.expected
    found = bucket_counts(run.samples)
    late = found.pop(Bucket.TIMEOUT)
    found[Bucket.FAILED] += late
    counts = [(b.value, n, BUCKETS[b]) for b, n in found.items() if n or b in ALWAYS]
    if late:
        counts[-1] = (*counts[-1][:2], f"{counts[-1][2]}; {text.count(late)} of them timed out")
    counts.append(("not run", max(total - len(run.samples), 0), "expected, not in the stored run"))
    rows = tuple((name, text.count(n), text.percent(n, total), what) for name, n, what in counts)
    columns = ("bucket", "samples", "share", "what it is")
    return Table(name="buckets", caption="What became of the requests", columns=columns, align="lrrl", rows=rows)


def disagreement_table(run: Run) -> Table:
    """Why strict-match, flexible-extract and the canonical score do not agree, most frequent first."""
    found = drift(run.samples)
    rows, caption = [], "Readings that disagree"
    if found is not None:
        caption += f": {STRICT} {found.strict:.4f}, {FLEXIBLE} {found.flexible:.4f}, canonical {found.canonical:.4f}"
        by_reason: dict[str, list[int]] = {}
        for sample, score in zip(run.samples, score_samples(run.samples), strict=True):
            if score.disagreement:
                by_reason.setdefault(score.disagreement, []).append(sample.doc_id)
        for reason, n in found.reasons.items():
            docs = ", ".join(f"#{doc}" for doc in by_reason[reason][:5]) + (" ..." if n > 5 else "")
            rows.append((reason, text.count(n), text.percent(n, found.n), MEANING.get(reason, reason), docs))
    return Table(
        name="disagreement",
        caption=caption,
        columns=("reason", "samples", "share", "what it is", "documents"),
        align="lrrll",
        rows=tuple(rows),
        missing="All readings of the answers agree.",
        fine=True,
    )


def _here(value: object) -> object:
    """Paths inside of a checkout without the checkout's own place: a page is read elsewhere."""
    if isinstance(value, Mapping):
        return {key: _here(inner) for key, inner in value.items()}
    if isinstance(value, str) and value.startswith("/"):
        inside = [value.find(part) for part in ("/engine/reference/", "/tasks/") if part in value]
        return value[max(inside) + 1 :] if inside else value
    return value


def provenance(run: Run) -> tuple[Fact, ...]:
    """Where the run comes from: id, command, hashes, versions, device, times."""
    where, prints = run.provenance, run.fingerprint
    device = mark(run, "device") or where.get("device")
    facts: list[tuple[str, object]] = [("run id", run.id), ("command", again.command(run))]
    facts.append(("fingerprint", prints.get("hash")))
    facts += [(name.replace("_", " "), value) for name, value in prints.items() if name.endswith(("_sha", "_hash"))]
    facts += [("device", device)]
    facts += [
        (name.replace("_", " "), "none" if value is None else _here(value))
        for name, value in where.items()
        if name not in ("command", "device", "notes")
    ]
    speed = f", {text.speed(run.output_tokens, run.seconds)}" if run.seconds > 0 and run.output_tokens else ""
    took = f"{text.duration(run.seconds)} for {text.count(run.output_tokens)} output tokens{speed}"
    facts.append(("generation", took if run.seconds > 0 else "time not recorded"))
    return tuple(Fact(name=name, value=text.plain(value)) for name, value in facts)
