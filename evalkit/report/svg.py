"""matplotlib figures as small inline SVG whose colours follow the page, light, dark and on paper.

matplotlib draws; what it writes is then made fit for a page: colours become the style's variables, text stays text in
the page's own font, ids are unique in the page, and nothing refers to anything outside. Every word in a figure is ours
or a run's setting, escaped by matplotlib's XML writer.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A colour that matplotlib is given -> the variable of style.css that is drawn.
INK, DIM, GRID, BACK = "#010101", "#020202", "#030303", "#040404"
GOLDEN, BAD, GOOD, OPEN = "#050505", "#060606", "#070707", "#0a0a0a"
SERIES = tuple(f"#1111{i}{i}" for i in range(6))
_VARIABLES = {
    INK: "--fg", DIM: "--dim", GRID: "--line", BACK: "--bg", GOLDEN: "--golden", BAD: "--fail", GOOD: "--pass",
    OPEN: "--open", **{colour: f"--s{i}" for i, colour in enumerate(SERIES)},
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P")  # with the colour, so that no series is told by colour alone
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
RIGHT = 0.12  # inches beside the axes
LEFT, BOTTOM = 0.62, 0.52  # inches: two-digit ticks and an axis' name
WIDTH, HEIGHT = 4.6, 2.9  # inches of 100 units: text is about as large as the page's at a phone's width
_SETTINGS = {
    "svg.fonttype": "none", "font.size": 10.5, "axes.edgecolor": GRID, "axes.labelcolor": DIM, "xtick.color": DIM,
    "ytick.color": DIM, "text.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": GRID, "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.6,
    "legend.labelcolor": INK, "xtick.major.size": 0, "ytick.major.size": 0, "svg.id": None, "legend.fontsize": 10,
    "axes.labelsize": 10.5, "path.simplify": True, "lines.markersize": 4.5,
    "text.parse_math": False,
}  # fmt: skip


def width_of(words: str) -> float:
    """Inches that a label takes at most: the page's own font draws it, so a character counts as a wide one."""
    wide = sum(1.0 if c in "MW@%\u2026" or ord(c) > 0x2E7F else 0.75 if c.isupper() else 0.6 for c in words)
    return wide * _SETTINGS["font.size"] / 72


def wrapped(words: str, inches: float) -> str:
    """The label in lines of at most so many inches, broken where a word, - _ or / ends if it can be."""
    lines = [""]
    for word in re.findall(r"[^\s_/-]*[\s_/-]+|[^\s_/-]+", words):
        if lines[-1] and width_of(lines[-1] + word.rstrip()) > inches:
            lines.append("")
        for c in word:
            if lines[-1] and width_of(lines[-1] + c) > inches:
                lines.append("")
            lines[-1] += c
    return "\n".join(line.strip() for line in lines)


def series(i: int) -> dict[str, Any]:
    """Colour, marker and line style of the i-th of several lines."""
    return {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)], "linestyle": STYLES[i % len(STYLES)]}


def draw(
    name: str, title: str, what: Callable[[Axes], None], *, height: float = HEIGHT, left: float = LEFT,
    bottom: float = BOTTOM,
) -> str:  # fmt: skip
    """The markup of one figure. `title` is what a screen reader says; `name` makes its ids its own. `left` and `bottom`
    are the room for labels, in inches: matplotlib's layout engines find it themselves, at twice the time."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {**_SETTINGS, "svg.hashsalt": name}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # text stays text: the reader's own fonts draw it
        figure = Figure(figsize=(WIDTH, height), dpi=100)
        FigureCanvasSVG(figure)
        axes = figure.add_axes((left / WIDTH, bottom / height, 1 - (left + RIGHT) / WIDTH, 1 - (bottom + 0.2) / height))
        what(axes)
        _keep_inside(axes, left)
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(out.getvalue(), name, title)


def _keep_inside(axes: Axes, left: float) -> None:
    """The axis' name moved as far as it must be to end inside the picture: axes beside long labels are narrow."""
    label, room = axes.xaxis.label, WIDTH - left - RIGHT
    half, middle = width_of(label.get_text()) / 2, left + room / 2
    at = max(min(middle, WIDTH - 0.05 - half), min(0.05 + half, WIDTH / 2))
    if at != middle:
        label.set_x((at - left) / room)


def _inline(svg: str, name: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href=", "href=")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r"; font-family: [^;\"]+", "", svg)
    svg = svg.replace("<defs>\n </defs>", "").replace("<g/>", "")
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r'\s*style="stroke: #000000[^"]*"', "", svg).replace("fill: #000000", "fill: var(--fg)")
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    head = f'<svg class="plot" viewBox="{box[1]}" role="img" aria-labelledby="{name}-t"><title id="{name}-t">'
    svg = re.sub(r"<svg[^>]*>", lambda _: f"{head}{_escape(title)}</title>", svg, count=1)
    svg = re.sub(r"(-?\d+\.\d\d)\d+", r"\1", svg)
    return re.sub(r"\s*\n\s*", "\n", svg)


def _escape(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
