"""The page's plots: each answers one question, and carries the numbers that it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evalkit import stats
from evalkit.baseline import STRICT
from evalkit.gate.accuracy import is_own_baseline
from evalkit.report import curves, svg, text
from evalkit.report.subject import Subject
from evalkit.report.text import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Frame = tuple[Mapping[str, Any], ...]  # rows of what is drawn: plain values, the same keys in every row
BANDS = "Bands hold for all positions of a run at once (95 %)."
FLAT_TICKS = 5  # more ranges of tokens stand aslant under the axis
ROW_LABEL, INSIDE, UNDER = 1.7, 1.5, 3.7  # inches: a row's label, a name in a legend, a name in a legend below
MAX_LINES = 6  # in one plot; more runs are spread over one plot a quant mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure: the question it answers, what it shows in words, its data, its markup (drawn by `drawn`)."""

    name: str
    question: str
    alt: str
    data: Frame
    draw: Callable[[Axes], None]
    height: float = svg.HEIGHT
    left: float = svg.LEFT
    bottom: float = svg.BOTTOM
    foot: float = 0.0  # inches under all that: of a legend that does not fit inside
    note: str = ""
    group: str = ""  # of the runs it shows; "" where it shows all
    markup: str = ""

    @property
    def table(self) -> Table:
        """What is drawn, as numbers."""
        columns = tuple(self.data[0]) if self.data else ()
        right = "".join("r" if all(_number(row[c]) for row in self.data) else "l" for c in columns)
        rows = tuple(tuple(_word(row[c]) for c in columns) for row in self.data)
        return Table(name=self.name, caption=self.question, align=right, rows=rows,
                     columns=tuple(c.replace("_", " ") for c in columns))  # fmt: skip


def drawn(plots: Iterable[Plot]) -> list[Plot]:
    """The plots with their markup."""
    return [replace(p, markup=_markup(p)) for p in plots]


def _markup(p: Plot) -> str:
    return svg.draw(
        p.name, f"{p.question} {p.alt}", p.draw, height=p.height + p.foot, left=p.left, bottom=p.bottom + p.foot
    )


def _number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _word(value: object) -> str:
    if value is None:
        return "no value"
    return f"{value:.4f}" if isinstance(value, float) else text.count(value) if isinstance(value, int) else str(value)


def plots(found: Sequence[Subject]) -> list[Plot]:
    """All plots that the runs have data for, in the order of the page."""
    made: list[Plot | None] = [loss(found), scores(found), lengths(found)]
    for group, members in groups(found):
        drawn_for = (survival, conditional, histogram, over_position, over_length, calibration)
        made += [replace(p, group=group) for f in drawn_for if (p := f(group, members)) is not None]
    return [p for p in [*made, detectable(found)] if p is not None]


def groups(found: Sequence[Subject]) -> list[tuple[str, list[Subject]]]:
    """Runs whose lines share a plot: all of them while they are few, else those of one engine, draft and quant mode."""
    drafted = [s for s in found if s.acceptance.steps and s.acceptance.survival]
    if len(drafted) <= MAX_LINES:
        return [("", drafted)] if drafted else []
    parts: dict[str, list[Subject]] = {}
    many = {key: len({str(s.run.cell.get(key)) for s in drafted}) > 1 for key in ("engine", "draft", "quant")}
    for s in drafted:
        name = " ".join(str(s.run.cell.get(key)) for key, several in many.items() if several and s.run.cell.get(key))
        parts.setdefault(name, []).append(s)
    out = []
    for name, members in parts.items():
        for i in range(0, len(members), MAX_LINES):
            out.append(
                (name if len(members) <= MAX_LINES else f"{name} {i // MAX_LINES + 1}", members[i : i + MAX_LINES])
            )
    return out


def _id(name: str, group: str) -> str:
    return "-".join([name, *("".join(c if c.isalnum() else "-" for c in group).split("-") if group else [])])


# --- one row a run


def _judged(found: Sequence[Subject], check: str, figure: str) -> tuple[list[dict[str, Any]], float | None]:
    """A row for each run whose `check` holds `figure` with an interval, and the margin of the last of them."""
    rows: list[dict[str, Any]] = []
    margin = None
    for s in found:
        x = s.check(check)
        if x.get(figure) is not None and x.get("interval"):
            low, high = x["interval"]
            margin = x.get("margin", margin)
            rows.append({"run": s.label, figure: x[figure], "low": low, "high": high, "level": x["level"],
                         "margin": margin})  # fmt: skip
    return rows, margin


def _left_out(found: Sequence[Subject], rows: Sequence[Mapping[str, Any]], why: Callable[[Subject], str]) -> str:
    """Names the runs that a picture of all runs does not have, by reason: what is missing is no pass."""
    there = {r["run"] for r in rows}
    reasons: dict[str, list[str]] = {}
    for s in found:
        if s.label not in there:
            reasons.setdefault(why(s), []).append(s.label)
    return "".join(f"Not shown: {', '.join(labels)} ({reason}). " for reason, labels in reasons.items()).strip()


def _no_difference(s: Subject) -> str:
    if s.verdict is None:
        return "not judged"
    if is_own_baseline(s.run, s.baseline):
        return "it is the baseline"
    if not s.scored[1]:
        return "no scored answer"
    if s.baseline is None:
        return "no baseline"
    if s.differences:
        return f"its baseline differs in {text.names([d.name for d in s.differences], most=3)}"
    return "no judged difference to its baseline"


def _no_ratio(s: Subject) -> str:
    if s.k == 0:
        return "K=0, nothing was drafted"
    if s.verdict is None:
        return "not judged"
    if s.run.forced:
        return "acceptance was forced"
    if s.acceptance.accepted_length is None:
        return "no verify step was counted"
    if s.golden_differs:
        return f"its golden differs in {s.golden_differs}"
    return "no interval for its ratio" if s.view.value is not None else "no golden at its K"


def loss(found: Sequence[Subject]) -> Plot | None:
    """Paired difference to the baseline with the gate's own interval, and the margin."""
    rows, margin = _judged(found, "accuracy", "difference")
    if not rows:
        return None

    def picture(ax: Axes) -> None:
        _forest(ax, [(r["run"], 100 * r["difference"], 100 * r["low"], 100 * r["high"]) for r in rows])
        _rule(ax, 0, "baseline", svg.INK)
        if margin is not None:
            _rule(ax, -100 * float(margin), "margin", svg.BAD, "--")
        ax.set_xlabel(f"difference to the baseline, points ({100 * rows[0]['level']:g} % interval)")

    inside = sum(r["low"] >= -(r["margin"] or 0) for r in rows)
    who = "any run" if len(found) > 1 else "it"
    return Plot(name="loss", question=f"Does {who} lose more than the margin?", data=tuple(rows), draw=picture,
                height=_rows_height(rows), left=_label_room(rows), note=_left_out(found, rows, _no_difference),
                alt=f"{inside} of {len(rows)} intervals of the difference lie above the margin.")  # fmt: skip


def scores(found: Sequence[Subject]) -> Plot | None:
    """Strict-match of each run with Wilson's interval, the baseline, its margin, and published scores."""
    rows: list[dict[str, Any]] = []
    for s in found:
        correct, n = s.scored
        if n:
            span = stats.wilson(correct, n)
            rows.append({"run": s.label, "score": correct / n, "low": span.low, "high": span.high, "n": n})
    if not rows:
        return None
    line = next(((s.pairs.baseline_correct / s.pairs.n) for s in found if s.pairs is not None), None)
    margin = next((float(x["margin"]) for s in found if "margin" in (x := s.check("accuracy"))), None)
    published = {r.name: r for s in found for r in s.references if not r.not_comparable(s.run) and r.metric == STRICT}
    for ref in published.values():
        span = stats.wilson(ref.correct, ref.n)
        rows.append({"run": f"{ref.name} (published)", "score": ref.score, "low": span.low, "high": span.high,
                     "n": ref.n})  # fmt: skip

    def picture(ax: Axes) -> None:
        _forest(ax, [(r["run"], 100 * r["score"], 100 * r["low"], 100 * r["high"]) for r in rows],
                hollow=len(published))  # fmt: skip
        if line is not None:
            _rule(ax, 100 * line, "baseline", svg.INK)
            if margin is not None:
                _rule(ax, 100 * (line - margin), "margin", svg.BAD, "--")
        ax.set_xlabel(f"{STRICT}, % (95 % Wilson)")

    best = max(rows, key=lambda r: r["score"])
    alt = f"Strict-match from {100 * min(r['score'] for r in rows):.1f} to {100 * best['score']:.1f} %."
    note = "" if published else "No published score is comparable with these runs; the table of references says why. "
    note = (note + _left_out(found, rows, lambda _: "no scored answer")).strip()
    return Plot(name="scores", question="How do the scores compare?", data=tuple(rows), draw=picture, alt=alt,
                height=_rows_height(rows), left=_label_room(rows), note=note)  # fmt: skip


def lengths(found: Sequence[Subject]) -> Plot | None:
    """Accepted length over golden with the gate's interval, and the margin."""
    rows, margin = _judged(found, "accepted length", "ratio")
    if not rows:
        return None

    def picture(ax: Axes) -> None:
        _forest(ax, [(r["run"], 100 * r["ratio"], 100 * r["low"], 100 * r["high"]) for r in rows])
        _rule(ax, 100, "golden", svg.GOLDEN)
        if margin is not None:
            _rule(ax, 100 * (1 - float(margin)), "margin", svg.BAD, "--")
        ax.set_xlabel(f"accepted length, % of the golden ({100 * rows[0]['level']:g} % interval)")

    inside = sum(r["low"] >= 1 - (r["margin"] or 0) for r in rows)
    return Plot(name="lengths", question="Does the draft still pay?", data=tuple(rows), draw=picture,
                height=_rows_height(rows), left=_label_room(rows), note=_left_out(found, rows, _no_ratio),
                alt=f"{inside} of {len(rows)} intervals of the ratio to golden lie above it.")  # fmt: skip


def _row_labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [svg.wrapped(r["run"], ROW_LABEL) for r in rows]


def _rows_height(rows: Sequence[Mapping[str, Any]]) -> float:
    lines = max(label.count("\n") + 1 for label in _row_labels(rows))
    return max(1.25, 0.85 + (0.11 + 0.16 * lines) * len(rows))


def _label_room(rows: Sequence[Mapping[str, Any]]) -> float:
    return 0.2 + max(svg.width_of(line) for label in _row_labels(rows) for line in label.split("\n"))


def _forest(ax: Axes, rows: Sequence[tuple[str, float, float, float]], hollow: int = 0) -> None:
    """Point and interval a row, top to bottom; the last `hollow` rows are not ours."""
    solid = len(rows) - hollow
    at, values = range(len(rows)), [r[1] for r in rows]
    ax.hlines(at, [r[2] for r in rows], [r[3] for r in rows], color=svg.SERIES[0], linewidth=2)
    for part, marker, face in ((slice(solid), "o", svg.SERIES[0]), (slice(solid, None), "D", svg.BACK)):
        ax.plot(values[part], at[part], linestyle="", marker=marker, color=svg.SERIES[0], markerfacecolor=face,
                markersize=6)  # fmt: skip
    ax.set_yticks(range(len(rows)), [svg.wrapped(r[0], ROW_LABEL) for r in rows], linespacing=1.0)
    ax.set_ylim(len(rows) - 0.4, -0.9)
    ax.tick_params(axis="y", labelcolor=svg.INK)
    ax.grid(axis="y", visible=False)


def _rule(ax: Axes, x: float, name: str, colour: str, style: str = "-") -> None:
    ax.axvline(x, color=colour, linewidth=1.1, linestyle=style, zorder=0.9)
    ax.annotate(name, (x, 1), xycoords=("data", "axes fraction"), xytext=(-3 if name == "margin" else 3, 0),
                textcoords="offset points", color=colour, fontsize=9.5, va="bottom",
                ha="right" if name == "margin" else "left")  # fmt: skip


# --- one line a run


def _spans(ax: Axes, i: int, spans: Sequence[tuple[float, float, float]]) -> None:
    """Intervals (x, low, high) of the i-th line, as one artist: matplotlib takes its time by the artist."""
    if spans:
        x, low, high = zip(*spans, strict=True)
        ax.vlines(x, low, high, color=svg.series(i)["color"], linewidth=1.2)


def _legend(ax: Axes, **more: Any) -> None:
    """Inside of the axes; names too long for that stand under them, in the room that `foot` makes."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) < 2:
        return
    shape = {"handlelength": 2.4, "labelspacing": 0.25, "borderpad": 0.1}
    if max(map(svg.width_of, labels)) <= INSIDE:
        ax.legend(**shape, **more)
    elif (figure := ax.figure) is not None:
        figure.legend(
            handles, [svg.wrapped(x, UNDER) for x in labels], loc="lower left", bbox_to_anchor=(0.01, 0), **shape
        )


def _foot(members: Sequence[Subject]) -> float:
    """Inches under the axes for a legend of long names; 0 where they fit into the axes."""
    names = [_name_in(s, members) for s in members]
    if max(map(svg.width_of, names)) <= INSIDE:
        return 0.0
    lines = 1 + sum(svg.wrapped(name, UNDER).count("\n") + 1 for name in names)  # and one of the golden
    return 0.1 + 0.19 * lines


def _name_in(s: Subject, members: Sequence[Subject]) -> str:
    return f"K={s.k}" if len({m.k for m in members}) == len(members) > 1 else s.label


def survival(group: str, members: Sequence[Subject]) -> Plot | None:
    rows = [
        {"run": s.label, "position": p.position, "share": p.survival, "low": p.survival_band and p.survival_band.low,
         "high": p.survival_band and p.survival_band.high,
         "golden": s.view.survival[p.position - 1] if s.view.survival else None}
        for s in members for p in s.curve
    ]  # fmt: skip

    implied = any(s.view.survival_from == "implied" for s in members)
    source = "implied by the golden curve" if implied else "golden"

    def picture(ax: Axes) -> None:
        _bands(ax, members, rows, "share")
        golden = [(r["position"], 100 * r["golden"]) for r in rows if r["golden"] is not None]
        if golden:
            ax.plot(*zip(*golden, strict=True), linestyle="", marker="D", color=svg.GOLDEN, markersize=4.2,
                    markerfacecolor=svg.BACK, markeredgewidth=1.3, label=source, zorder=3)  # fmt: skip
        ax.set_xlabel("position i in the block")
        ax.set_ylabel("accept rate at i, %")
        _legend(ax, loc="lower left")

    if not rows:
        return None
    ends = [(s.label, s.curve[0], s.curve[-1]) for s in members if s.curve]
    alt = "; ".join(f"{name}: {100 * a.survival:.0f} % at position 1, {100 * z.survival:.0f} % at {z.position}"
                    for name, a, z in ends)  # fmt: skip
    return Plot(name=_id("survival", group), question="How far into the block do drafts survive?", alt=alt,
                data=tuple(rows), draw=picture, foot=_foot(members),
                note=f"Accept rate at i: steps whose first i drafts were all kept; blocks cut by a stop are included. "
                     f"{BANDS}")  # fmt: skip


def conditional(group: str, members: Sequence[Subject]) -> Plot | None:
    rows = [
        {"run": s.label, "position": int(p.low), "rate": p.value, "low": p.interval and p.interval.low,
         "high": p.interval and p.interval.high, "drafts": p.steps}
        for s in members for p in s.by_draft
    ]  # fmt: skip

    def picture(ax: Axes) -> None:
        _bands(ax, members, rows, "rate")
        ax.set_xlabel("position i in the block")
        ax.set_ylabel("kept, given those before, %")
        _legend(ax, loc="lower left")

    if not rows:
        return None
    weakest = [(s.label, min(s.by_draft, key=lambda p: p.value)) for s in members if s.by_draft]
    alt = "; ".join(f"{name}: {100 * p.value:.0f} % at position {int(p.low)}, the lowest" for name, p in weakest)
    stopped = sum(s.acceptance.cut_at_stop for s in members)
    cut = f"{text.count(stopped)} of {text.count(sum(s.acceptance.steps for s in members))} blocks ended by a stop"
    return Plot(name=_id("conditional", group), question="Which position is the weakest?", alt=alt,
                data=tuple(rows), draw=picture, foot=_foot(members),
                note=f"Drafts past a stop are left out ({cut}). {BANDS}")  # fmt: skip


def _bands(ax: Axes, members: Sequence[Subject], rows: Sequence[Mapping[str, Any]], value: str) -> None:
    """A line a run over positions, in per cent, with its band."""
    lowest = 100.0
    for i, s in enumerate(members):
        own = [r for r in rows if r["run"] == s.label]
        x, y = [r["position"] for r in own], [100 * r[value] for r in own]
        known = [r for r in own if r["low"] is not None]
        if known:
            low, high = [100 * r["low"] for r in known], [100 * r["high"] for r in known]
            ax.fill_between([r["position"] for r in known], low, high, color=svg.series(i)["color"], alpha=0.16,
                            linewidth=0)  # fmt: skip
            lowest = min(lowest, *low)
        ax.plot(x, y, label=_name_in(s, members), **svg.series(i))
        lowest = min(lowest, *y)
    ax.set_xticks(sorted({r["position"] for r in rows}))
    ax.set_ylim(0 if lowest < 50 else 10 * int((lowest - 1) // 10), 100.8)


def histogram(group: str, members: Sequence[Subject]) -> Plot | None:
    rows = [
        {"run": s.label, "accepted": a, "share": n / s.acceptance.steps, "steps": n,
         "golden": s.view.histogram[a] if s.view.histogram else None}
        for s in members for a, n in enumerate(s.acceptance.histogram)
    ]  # fmt: skip

    def picture(ax: Axes) -> None:
        width = 0.8 / len(members)
        top = max(r["share"] for r in rows)
        for i, s in enumerate(members):
            own = [r for r in rows if r["run"] == s.label]
            at = [r["accepted"] + (i - (len(members) - 1) / 2) * width for r in own]
            ax.bar(at, [100 * r["share"] for r in own], width * 0.94, color=svg.SERIES[i], label=_name_in(s, members))
            golden = [(x, 100 * r["golden"]) for x, r in zip(at, own, strict=True) if r["golden"] is not None]
            if golden:
                ax.plot(*zip(*golden, strict=True), linestyle="", marker="D", color=svg.GOLDEN, markersize=4.2,
                        markerfacecolor=svg.BACK, markeredgewidth=1.3,
                        label="golden" if i == len(members) - 1 else None)  # fmt: skip
        ax.set_xticks(range(max(r["accepted"] for r in rows) + 1))
        ax.set_ylim(0, 100 * top * 1.12)
        ax.grid(axis="x", visible=False)
        ax.set_xlabel("drafts accepted in a step")
        ax.set_ylabel("verify steps, %")
        _legend(ax, loc="upper left")

    if not rows:
        return None
    alt = "; ".join(f"{s.label}: {100 * s.acceptance.histogram[-1] / s.acceptance.steps:.0f} % of the steps keep all "
                    f"{len(s.acceptance.histogram) - 1}" for s in members)  # fmt: skip
    return Plot(name=_id("histogram", group), question="How many drafts does a step keep?", alt=alt,
                data=tuple(rows), draw=picture, foot=_foot(members))  # fmt: skip


def over_position(group: str, members: Sequence[Subject]) -> Plot | None:
    rows = [
        {"run": s.label, "from_token": int(p.low), "to_token": int(p.high) - 1, "steps": p.steps,
         "accepted_length": p.value, "low": p.interval and p.interval.low, "high": p.interval and p.interval.high}
        for s in members for p in curves.by_position(s.steps)
    ]  # fmt: skip
    if not rows:
        return None
    return Plot(
        name=_id("position", group), question="Does the draft hold up along the answer?",
        alt=_range(members, rows), data=tuple(rows),
        draw=_binned(members, rows, "token of the answer at which the step starts"), bottom=_tick_room(rows),
        foot=_foot(members),
    )  # fmt: skip


def over_length(group: str, members: Sequence[Subject]) -> Plot | None:
    from evalkit.report.drafts import bin_ends

    rows = []
    for s in members:
        for g in s.by_length:
            if g.accepted_length is not None:
                low, high = bin_ends(g.label)
                half = None if g.se is None else 1.96 * g.se
                rows.append({"run": s.label, "from_token": low, "to_token": high, "steps": g.steps,
                             "accepted_length": g.accepted_length, "low": half and g.accepted_length - half,
                             "high": half and g.accepted_length + half})  # fmt: skip
    if not rows:
        return None
    return Plot(
        name=_id("length", group), question="Does it hold up in long answers?", alt=_range(members, rows),
        data=tuple(rows), draw=_binned(members, rows, "tokens of the whole answer"), bottom=_tick_room(rows),
        foot=_foot(members),
    )  # fmt: skip


def _range(members: Sequence[Subject], rows: Sequence[Mapping[str, Any]]) -> str:
    out = []
    for s in members:
        values = [r["accepted_length"] for r in rows if r["run"] == s.label]
        if values:
            out.append(f"{s.label}: accepted length {min(values):.2f} to {max(values):.2f}")
    return "; ".join(out)


def _tick_room(rows: Sequence[Mapping[str, Any]]) -> float:
    return svg.BOTTOM if len({r["from_token"] for r in rows}) <= FLAT_TICKS else 0.85


def _binned(members: Sequence[Subject], rows: Sequence[Mapping[str, Any]], axis: str) -> Callable[[Axes], None]:
    def picture(ax: Axes) -> None:
        edges = sorted({(r["from_token"], r["to_token"]) for r in rows})
        starts = sorted({low for low, _ in edges})
        place = {low: i for i, low in enumerate(starts)}
        name = {low: f"{low}\u2013{max(h for lo, h in edges if lo == low)}" for low in starts}
        many = len(members)
        for i, s in enumerate(members):
            own = [r for r in rows if r["run"] == s.label]
            x = [place[r["from_token"]] + 0.08 * (i - (many - 1) / 2) for r in own]
            y = [r["accepted_length"] for r in own]
            ax.plot(x, y, label=_name_in(s, members), **svg.series(i))
            _spans(ax, i, [(at, r["low"], r["high"]) for at, r in zip(x, own, strict=True) if r["low"] is not None])
        ax.set_xticks(range(len(starts)), [name[low] for low in starts],
                      rotation=0 if len(starts) <= FLAT_TICKS else 40,
                      ha="center" if len(starts) <= FLAT_TICKS else "right")  # fmt: skip
        ax.set_ylim(bottom=1)
        ax.margins(y=0.12)
        ax.set_xlabel(axis)
        ax.set_ylabel("accepted length")
        _legend(ax, loc="lower left", ncols=2 if many > 3 else 1)

    return picture


def calibration(group: str, members: Sequence[Subject]) -> Plot | None:
    rows = [
        {"run": s.label, "confidence": p.low, "accepted": p.value, "low": p.interval and p.interval.low,
         "high": p.interval and p.interval.high, "drafts": p.steps}
        for s in members for p in curves.reliability(s.steps)
    ]  # fmt: skip
    if not rows:
        return None

    def picture(ax: Axes) -> None:
        ax.plot([0, 100], [0, 100], color=svg.DIM, linewidth=1, linestyle=":", label="calibrated")
        for i, s in enumerate(members):
            own = [r for r in rows if r["run"] == s.label]
            ax.plot([100 * r["confidence"] for r in own], [100 * r["accepted"] for r in own],
                    label=_name_in(s, members), **svg.series(i))  # fmt: skip
            _spans(ax, i, [(100 * r["confidence"], 100 * r["low"], 100 * r["high"]) for r in own
                           if r["low"] is not None])  # fmt: skip
        ax.set_xlim(0, 101)
        ax.set_ylim(0, 101)
        ax.set_xlabel("confidence of the draft, %")
        ax.set_ylabel("kept, %")
        _legend(ax, loc="upper left")

    gaps = [abs(r["confidence"] - r["accepted"]) for r in rows]
    return Plot(name=_id("calibration", group), question="Does the confidence head know?", data=tuple(rows),
                draw=picture, foot=_foot(members),
                alt=f"Confidence and share kept differ by at most {100 * max(gaps):.0f} points in a bin.",
                note="Drafts whose earlier ones were all kept; those past a stop and bins of under 30 are left out.",
                )  # fmt: skip


def detectable(found: Sequence[Subject]) -> Plot | None:
    """What a run of so many questions could have shown, at the discordance seen."""
    with_pairs = [(s, s.pairs) for s in found if s.pairs is not None and "level" in s.check("accuracy")]
    if not with_pairs:
        return None
    worst, pairs = max(with_pairs, key=lambda x: (x[1].up + x[1].down) / x[1].n)
    numbers = worst.check("accuracy")
    margin, alpha = float(numbers["margin"]), (1 - float(numbers["level"])) / 2
    share = stats.discordant_at(pairs.up, pairs.down, pairs.n, -margin)
    rows = [{"pairs": n, "loss": loss_} for n, loss_ in curves.mde(worst.run, share, alpha)]
    here = stats.mde_paired(pairs.n, share, alpha)

    whose = "this run's" if len(found) == 1 else f"{worst.label}'s (the run that differs most)"

    def picture(ax: Axes) -> None:
        ax.plot([r["pairs"] for r in rows], [100 * r["loss"] for r in rows], color=svg.SERIES[0])
        ax.plot([pairs.n], [100 * here], marker="o", color=svg.SERIES[0], markersize=7)
        ax.annotate(
            f"this run: {100 * here:.2f} pt",
            (pairs.n, 100 * here),
            xytext=(-6, -13),
            ha="right",
            color=svg.INK,
            textcoords="offset points",
            fontsize=10,
        )  # below the curve, which falls
        ax.axhline(100 * margin, color=svg.BAD, linewidth=1.1, linestyle="--")
        ax.annotate("margin", (0, 100 * margin), xycoords=("axes fraction", "data"), xytext=(3, 3), ha="left",
                    textcoords="offset points", color=svg.BAD, fontsize=9.5)  # fmt: skip
        ax.set_xscale("log")
        ticks = [n for n in (50, 200, 1319, 5276) if n in {r["pairs"] for r in rows}]
        ax.set_xticks(ticks, [text.count(n) for n in ticks])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel("questions paired with the baseline")
        ax.set_ylabel("loss shown with 80 % power, pt")

    return Plot(name="mde", question="How small a loss could this have shown?", data=tuple(rows), draw=picture,
                alt=f"{pairs.n} pairs show a loss of {100 * here:.2f} points with 80 % power; the margin is "
                    f"{100 * margin:g} points.",
                note=f"Reckoned for {100 * share:.1f} % of answers flipping, both ways together: the most likely share "
                     f"if {whose} true loss were just the margin.")  # fmt: skip
