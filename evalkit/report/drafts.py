"""Acceptance beside the golden: histogram, survival, calibration, as tables and as points to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalkit.acceptance import AcceptanceStats, Calibration, Group, Position, implied_groups
from evalkit.golden import Curve, GoldenValue
from evalkit.records import Verdict
from evalkit.report import text
from evalkit.report.curves import Point
from evalkit.report.text import Table
from evalkit.stats import Interval

BAND = "95 %, all at once"
RATE = "accept rate by position"  # share of steps whose first i drafts were all kept
GIVEN = "kept, given those before"
NO_DRAFT = "This run has K=0: nothing was drafted, so there is no accepted length to report."


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenView:
    """What the golden says at the run's K. `missing` says in words what it does not; survival has None at a
    position nothing is known of."""

    value: GoldenValue | None = None
    histogram: tuple[float, ...] = ()  # shares of steps with 0..K accepted drafts
    survival: tuple[float | None, ...] = ()
    survival_from: str = ""  # golden | implied
    missing: tuple[str, ...] = ()


def golden_view(golden: GoldenValue | Curve | None, k: int, mode: str | None = None) -> GoldenView:
    """A golden value, or the one at exactly K of a curve (of `mode`, where it has several).

    A curve also gives the survival that its steps imply (see implied_groups) where it has both neighbours; a curve
    that implies no survival is unusable for that.
    """
    if golden is None:
        return GoldenView(missing=(f"no golden for K={k}",))
    if isinstance(golden, GoldenValue):
        return _with_histogram(golden, k, {})
    if mode is None and len(golden.values) == 1:
        mode = next(iter(golden.values))
    if mode is None or mode not in golden.values:
        modes = ", ".join(golden.values)
        why = f"{golden.source} has the modes {modes}, asked for {mode or 'none'}"
        return GoldenView(missing=(f"no golden for K={k}: {why}",))
    by_k = golden.values[mode]
    if k not in by_k:
        have = ", ".join(f"K={x}" for x in sorted(by_k))
        return GoldenView(missing=(f"no golden for K={k}: {golden.source} has {have}; nothing is interpolated",))
    return _with_histogram(by_k[k], k, {x: v.accepted_length for x, v in by_k.items()})


def _with_histogram(value: GoldenValue, k: int, lengths: Mapping[int, float]) -> GoldenView:
    if value.k != k:
        return GoldenView(missing=(f"no golden for K={k}: the value given is for K={value.k}",))
    counts = value.histogram
    if counts is not None and sum(counts):
        shares = tuple(c / sum(counts) for c in counts)
        survival = tuple(sum(shares[i:]) for i in range(1, k + 1))
        return GoldenView(value=value, histogram=shares, survival=survival, survival_from="golden")
    missing = [f"no golden histogram: {value.source} has only a mean at K={k}"]
    try:
        groups, sums = implied_groups({x: v for x, v in lengths.items() if x <= k})
    except ValueError as e:
        missing.append(f"no implied survival: the golden curve does not rise by ever smaller steps ({e})")
        return GoldenView(value=value, missing=tuple(missing))
    alone = {first: s for (first, last), s in zip(groups, sums, strict=True) if first == last}
    if not alone:
        missing.append("no implied survival: the golden has no two neighbouring K")
        return GoldenView(value=value, missing=tuple(missing))
    implied = tuple(alone.get(i) for i in range(1, k + 1))
    return GoldenView(value=value, survival=implied, survival_from="implied", missing=tuple(missing))


def acceptance_table(found: AcceptanceStats, golden: GoldenView) -> Table:
    """Accepted length, raw and trimmed, and the counts behind it: what was not told has no row, and no 0."""
    unit = text.counting(found.clusters, "sample") if found.by_step else f"{text.count(found.clusters)} {found.unit}"
    rows = [
        ("accepted length, raw", text.length(found.accepted_length), "the published definition; judged"),
        ("95 % interval", _length_interval(found), f"clusters: {unit}"),
        *_other_lengths(found),
        ("golden accepted length", golden_length(golden), _golden_source(golden)),
        ("share of the golden", golden_ratio(found, golden), "raw over golden"),
        ("acceptance rate", _maybe(found.acceptance_rate), f"{text.count(found.accepted)} of "
         f"{text.count(found.drafts)} drafts; falls as K grows"),
        ("verify steps", text.count(found.steps), f"in {text.counting(found.requests, 'request')}"),
        *_steps_apart(found),
    ]  # fmt: skip
    if found.design_effect is not None:
        rows.append(("design effect", f"{found.design_effect:.2f}", "variance by samples over variance by steps"))
    return Table(name="acceptance", caption="Accepted length and rate", columns=("figure", "value", "what it is"),
                 align="lrl", rows=tuple(rows))  # fmt: skip


def _other_lengths(found: AcceptanceStats) -> list[tuple[str, str, str]]:
    """Lengths by another definition, where they are known and differ."""
    rows = []
    if found.by_step:
        trimmed = text.length(found.accepted_length_trimmed)
        rows.append(("accepted length, trimmed", trimmed, "drafts that are in the output"))
    if found.pooled_differs():
        rows.append(("mean of requests", text.length(found.mean_of_requests), "each request weighs the same; not the "
                     "published definition"))  # fmt: skip
    if found.steps_without_draft and found.emitted_per_step is not None:
        rows.append(("tokens a forward pass", text.length(found.emitted_per_step), "steps without a draft included; "
                     "what speed depends on"))  # fmt: skip
    return rows


def _steps_apart(found: AcceptanceStats) -> list[tuple[str, str, str]]:
    if not found.by_step:
        return [("counted from", found.source, "steps without a draft and steps cut are not told")]
    stop, limit = text.count(found.cut_at_stop), text.count(found.cut_at_limit)
    cut = text.count(found.cut_at_stop + found.cut_at_limit)
    return [("steps without a draft", text.count(found.steps_without_draft), "counted in no figure here"),
            ("steps cut", cut, f"{stop} at a stop, {limit} at the token limit")]  # fmt: skip


def golden_length(golden: GoldenView) -> str:
    if golden.value is None:
        return golden.missing[0].split(":")[0]
    return text.length(golden.value.accepted_length)


def golden_ratio(found: AcceptanceStats, golden: GoldenView) -> str:
    if golden.value is None or found.accepted_length is None:
        return "not comparable"
    return text.percent(found.accepted_length, golden.value.accepted_length)


def _golden_source(golden: GoldenView) -> str:
    value = golden.value
    if value is None:
        return "; ".join(golden.missing)
    spread = "publishes no interval" if value.interval is None else f"95 % {text.interval(*value.interval, 3)}"
    counted = "" if value.steps is None else f", {text.count(value.steps)} steps"
    return f"{value.source} ({value.mode}), {spread}{counted}"


def _length_interval(found: AcceptanceStats) -> str:
    if found.interval is None:
        return "none from one sample" if found.by_step else "no spread is told"
    return text.interval(found.interval.low, found.interval.high, 3)


def _maybe(value: float | None) -> str:
    return "no value" if value is None else text.share(value)


def histogram_table(found: AcceptanceStats, golden: GoldenView) -> Table:
    rows = []
    for i, steps in enumerate(found.histogram):
        here = steps / found.steps
        there = golden.histogram[i] if golden.histogram else None
        rows.append((str(i), text.count(steps), text.share(here), *_beside(here, there)))
    return Table(name="histogram", caption="Accepted drafts in a step, before trimming",
                 columns=("accepted drafts", "steps", "share", "golden", "difference"),
                 align="lrrrr", rows=tuple(rows))  # fmt: skip


def survival_table(curve: Sequence[Position], golden: GoldenView, given: Sequence[Point] = ()) -> Table:
    """`given`: kept at each position, given those before (Subject.by_draft); it ends where no draft was judged."""
    rows = []
    for i, p in enumerate(curve):
        there = golden.survival[i] if golden.survival else None
        point = given[i] if i < len(given) else None
        kept = text.share(point.value) if point else "never reached" if given else "not told"
        judged = text.count(point.steps) if point else "0" if given else "not told"
        values = _beside(p.survival, there)
        rows.append((str(p.position), text.share(p.survival), _band(p.survival_band), *values, judged, kept))
    source = golden.survival_from or "golden"
    return Table(name="survival", caption="Accept rate by position: steps whose first drafts were all kept",
                 columns=("position", "accept rate", BAND, source, "difference", "judged", GIVEN),
                 align="lrrrrrr", rows=tuple(rows))  # fmt: skip


def _band(band: Interval | None) -> str:
    return "no band" if band is None else text.interval(band.low, band.high)


def distribution_table(verdict: Verdict | None) -> Table:
    """What the check of the distribution found, as the size of the effect: tokens a step."""
    numbers = next((c.numbers for c in verdict.checks if "wasserstein" in c.numbers), {}) if verdict else {}
    rows = [
        (name, f"{numbers[key]:.3f}", what)
        for key, name, what in (
            ("lost", "lost", "at the positions that accept less than the golden's; judged"),
            ("upper", "lost at most", "one-sided bound, clustered by document"),
            ("margin", "margin", "a larger loss fails"),
            ("gained", "gained", "at the positions that accept more"),
            ("wasserstein", "lost and gained", "Wasserstein-1 of the two distributions"),
        )
        if key in numbers
    ]
    if numbers.get("p_equal") is not None:
        rows.append(("p, no difference", f"{numbers['p_equal']:.2g}", "says whether, not how much"))
    return Table(name="distribution", caption="Accepted drafts against the golden, in tokens a step",
                 columns=("effect", "value", "what it is"), align="lrl", rows=tuple(rows))  # fmt: skip


def group_table(name: str, caption: str, label: str, groups: Sequence[Group]) -> Table:
    """Accepted length of the samples with one label; nothing where no request tells of its own acceptance."""
    if groups and all(g.accepted_length is None for g in groups):
        groups, missing = (), "Acceptance is told of all requests together only."
    else:
        missing = "The samples of this run have no such label."
    rows = tuple(
        (g.label or "none", text.count(g.samples), text.count(g.steps),
         "no verify step" if g.accepted_length is None else text.length(g.accepted_length) + text.spread(g.se, 3),
         "-" if not g.survival else text.share(g.survival[0]), "-" if not g.survival else text.share(g.survival[-1]))
        for g in groups
    )  # fmt: skip
    return Table(name=name, caption=caption, align="lrrrrr", rows=rows,
                 columns=(label, "samples", "verify steps", "accepted length", "first draft kept", "all kept"),
                 missing=missing)  # fmt: skip


def bin_ends(label: str) -> tuple[int, int]:
    """First and last token count of a bin of `by_answer_length`: `64 to 127`."""
    numbers = [int(word) for word in label.split() if word.isdecimal()]
    return numbers[0], numbers[-1]


def _beside(here: float, there: float | None) -> tuple[str, str]:
    return ("no value", "no value") if there is None else (text.share(there), text.signed(here - there))


def cut_words(found: AcceptanceStats) -> str:
    """How many blocks a stop cut, and what of them is left out of conditional rates."""
    if not found.by_step:
        return "How many blocks a stop cut is not told."
    if not found.cut_at_stop:
        return "No block was cut by a stop."
    one = found.cut_at_stop == 1
    drafts = f"{text.counting(found.past_stop, 'draft')} past it" if one else (
        f"{text.counting(found.past_stop, 'draft')} past one")  # fmt: skip
    return (f"{text.count(found.cut_at_stop)} of {text.counting(found.steps, 'block')} {'was' if one else 'were'} cut "
            f"by a stop; the {drafts} {'is' if found.past_stop == 1 else 'are'} left out.")  # fmt: skip


def calibration_table(calibration: Sequence[Calibration]) -> Table:
    rows = tuple(
        (c.kind, str(c.position), text.count(c.steps), text.share(c.mean_confidence), text.share(c.rate),
         text.signed(c.mean_confidence - c.rate), text.share(c.ece_10), text.share(c.ece_20))
        for c in calibration
    )  # fmt: skip
    return Table(
        name="calibration",
        caption="Confidence of the draft against what was kept",
        columns=("kind", "position", "steps", "mean confidence", "kept", "difference", "ECE, 10 bins",
                 "ECE, 20 bins"),
        align="lrrrrrrr",
        rows=rows,
        missing="No calibration: the steps of this run hold no draft confidence.",
    )  # fmt: skip
