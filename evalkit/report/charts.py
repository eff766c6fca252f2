"""Two small charts as inline SVG. Colours come from the page's style, so they follow light and dark.

Every chart has a table of the same numbers beneath it in the page; only its own text is generated here, and
it is all numbers and fixed words, so the markup is safe as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from evalkit.stats import Interval

WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 22, 46


def _top(values: Sequence[float]) -> float:
    """The end of the scale: the next of 0.1, 0.2, ... that leaves room for a label."""
    return min(1.0, (int(max(values, default=0.0) * 10 + 0.3) + 1) / 10)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _frame(labels: Sequence[str], axis: str, top: float, title: str, body: str) -> str:
    slot = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    step = 0.1 if top <= 0.5 else 0.2
    ticks = [i * step for i in range(int(top / step + 1e-9) + 1)]
    grid = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(t, top):.1f}" y2="{_y(t, top):.1f}"/>'
        f'<text class="tick" x="{LEFT - 7}" y="{_y(t, top) + 4:.1f}" text-anchor="end">{100 * t:.0f} %</text>'
        for t in ticks
    )
    names = "".join(
        f'<text class="tick" x="{LEFT + (i + 0.5) * slot:.1f}" y="{HEIGHT - BOTTOM + 18}" '
        f'text-anchor="middle">{name}</text>'
        for i, name in enumerate(labels)
    )
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    words = f'<text class="axis" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{axis}</text>'
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{grid}{body}{names}{words}</svg>"
    )


def histogram(shares: Sequence[float], golden: Sequence[float]) -> str:
    """Bars: share of steps with 0..K accepted drafts. Markers: the golden's, where it has a histogram."""
    top = _top([*shares, *golden])
    slot = (WIDTH - LEFT - RIGHT) / max(len(shares), 1)
    body = []
    for i, value in enumerate(shares):
        x, y, width = LEFT + i * slot + slot * 0.19, _y(value, top), slot * 0.62
        body.append(f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_y(0, top) - y:.1f}"/>')
        label, where = y - 5, "value"
        if golden and -6 < y - _y(golden[i], top) < 24:  # the marker is where the number would be
            fits = _y(0, top) - y > 26
            label, where = (y + 18, "value inside") if fits else (_y(golden[i], top) - 10, "value")
        body.append(
            f'<text class="{where}" x="{x + width / 2:.1f}" y="{label:.1f}" text-anchor="middle">'
            f"{100 * value:.1f}</text>"
        )
    for i, value in enumerate(golden):
        body.append(_diamond(LEFT + (i + 0.5) * slot, _y(value, top), slot * 0.4))
    title = "Share of verify steps by accepted drafts" + (", with the golden's" if golden else "")
    return _frame([str(i) for i in range(len(shares))], "accepted drafts in a step", top, title, "".join(body))


def survival(observed: Sequence[float], golden: Sequence[float | None], bands: Sequence[Interval | None] = ()) -> str:
    """Line with dots: share of steps whose first i drafts were accepted. Area and whiskers: its band. Diamonds: golden
    or implied."""
    slot = (WIDTH - LEFT - RIGHT) / max(len(observed), 1)
    xs = [LEFT + (i + 0.5) * slot for i in range(len(observed))]
    points = " ".join(f"{x:.1f},{_y(v, 1):.1f}" for x, v in zip(xs, observed, strict=True))
    known = [(x, band) for x, band in zip(xs, bands, strict=False) if band is not None]
    edge = [f"{x:.1f},{_y(b.high, 1):.1f}" for x, b in known] + [f"{x:.1f},{_y(b.low, 1):.1f}" for x, b in known[::-1]]
    body = [f'<polygon class="band" points="{" ".join(edge)}"/>'] if known else []
    body += [_whisker(x, _y(band.low, 1), _y(band.high, 1)) for x, band in known]
    body.append(f'<polyline class="line" points="{points}"/>')
    for x, value, there in zip(xs, observed, golden or [None] * len(observed), strict=True):
        y = _y(value, 1)
        below = there is not None and there > value
        lift = 19 if below and y + 19 < _y(0, 1) else -10  # never over the axis' own labels
        if there is not None:
            body.append(_diamond(x, _y(there, 1), 26))
        body.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        body.append(f'<text class="value" x="{x:.1f}" y="{y + lift:.1f}" text-anchor="middle">{100 * value:.1f}</text>')
    title = "Share of verify steps whose first i drafts were all accepted"
    return _frame([str(i + 1) for i in range(len(observed))], "position i in the block", 1.0, title, "".join(body))


def _whisker(x: float, low: float, high: float) -> str:
    caps = "".join(f"M{x - 5:.1f} {y:.1f}H{x + 5:.1f}" for y in (low, high))
    return f'<path class="whisker" d="M{x:.1f} {low:.1f}V{high:.1f}{caps}"/>'


def _diamond(x: float, y: float, half: float) -> str:
    """A golden marker: a diamond on a short line, told from a bar or a dot by its shape."""
    return (
        f'<path class="golden" d="M{x - half:.1f} {y:.1f}H{x + half:.1f}"/>'
        f'<path class="mark" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"/>'
    )
