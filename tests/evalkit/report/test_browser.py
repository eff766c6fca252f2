"""The page in a real browser: it loads clean, its lists and links work, hostile text stays text, and axe finds nothing
serious. Skips where there is no Chromium."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.baseline import STRICT
from evalkit.gate import judge
from evalkit.records import Run, Sample
from evalkit.report.render import render_page
from evalkit.report.serve import make_server
from tests.evalkit.report.makers import (
    HOSTILE,
    RECORDED,
    REFERENCES,
    make_baseline,
    make_curve,
    make_run,
    make_subject,
    make_verdict,
)
from tests.evalkit.report.test_report_serve import store
from tools.report import FLAGS, browser

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = browser()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: .ci/run installs one"),
]
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


def with_tokens(sample: Sample) -> Sample:
    """The sample with a text for each token: w0, w1 ..., and r0, r1 ... rejected."""
    n = 1 + sum(s.accepted_trimmed + 1 for s in sample.steps)
    steps = tuple(replace(s, rejected=tuple(f" r{i}" for i in range(s.k - s.accepted))) for s in sample.steps)
    pieces = tuple(f" w{i}" for i in range(n))
    return replace(sample, pieces=pieces, text="".join(pieces), steps=steps)


def write(folder: Path, *runs: Run) -> str:
    base, golden = make_baseline(runs[0]), make_curve(RECORDED)
    found = [
        make_subject(r, make_verdict(r), label=f"run {i}", index=i, baseline=base, golden=golden, references=REFERENCES)
        for i, r in enumerate(runs)
    ]
    path = folder / "page.html"
    path.write_text(render_page(found), encoding="utf-8", errors="backslashreplace")
    return path.as_uri()


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    a = make_run(240)
    tokens = tuple(with_tokens(s) for s in a.samples)
    lost = replace(tokens[20], error="timed out", scores={}, steps=(), text="", pieces=())
    cut = replace(tokens[21], finish_reason="length", scores={STRICT: 0.0}, text="half a")
    a = replace(a, samples=(*tokens[:20], lost, cut, *tokens[22:]))
    other = tuple(replace(s, text=s.text + " and more") if s.doc_id % 2 else s for s in tokens)
    return [a, replace(make_run(240, 5, id="second"), samples=other, cell={**a.cell, "k": 7, "quant": "fp8"})]


@pytest.fixture(scope="module")
def address(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("pair"), *runs)


@pytest.fixture(scope="module")
def alone(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("alone"), runs[0])


class Tab:
    """A page with all that it complained of and asked for."""

    def __init__(self, chromium: Any, address: str, **how: Any) -> None:
        self.page = chromium.new_page(**{"viewport": {"width": 1280, "height": 800}, **how})
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("dialog", lambda d: (self.said.append(f"dialog {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(address)

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


def test_page_loads_clean_and_asks_for_nothing(chromium: Any, address: str) -> None:
    with Tab(chromium, address) as tab:
        tab.page.locator("#samples").scroll_into_view_if_needed()
        tab.page.wait_for_selector("#list a")
        assert tab.said == [] and tab.asked == [address]
        took = tab.page.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
        assert took < 5000  # a second on an idle machine; this one may not be


def test_filters_and_search_narrow_the_list(chromium: Any, alone: str, runs: list[Run]) -> None:
    with Tab(chromium, alone) as tab:
        page = tab.page
        page.locator("#samples").scroll_into_view_if_needed()
        page.wait_for_selector("#list a")
        assert page.locator("#count").inner_text() == "240 of 240 samples, page 1 of 3"
        wrong = sum(s.scores.get(STRICT) == 0 for s in runs[0].samples)
        for value, n in (("lost", 5), ("gained", 3), ("wrong", wrong), ("failed", 1), ("truncated", 1)):
            page.select_option("#show", value)
            page.wait_for_function("n => document.querySelectorAll('#list a').length === n", arg=n)
        page.select_option("#show", "all")
        page.fill("#find", "#17")
        page.wait_for_function("() => document.querySelectorAll('#list a').length === 1")
        page.fill("#find", "no such words")
        page.wait_for_function("() => document.querySelector('#count').textContent.startsWith('0 of')")
        page.fill("#find", "")
        page.wait_for_function("() => document.querySelectorAll('#list a').length === 100")
        page.get_by_role("button", name="Next").click()
        page.wait_for_function("() => document.querySelector('#list .doc').textContent === '#100'")
        assert tab.said == []


def test_a_link_opens_its_sample_with_its_tokens(chromium: Any, address: str, runs: list[Run]) -> None:
    with Tab(chromium, f"{address}#sample=33&run=1") as tab:
        page = tab.page
        page.wait_for_selector("#detail .steps")
        sample = next(s for s in runs[1].samples if s.doc_id == 33)
        assert "Sample #33" in page.locator("#detail h3").inner_text()
        assert page.locator("#detail .steps li").count() == 1 + len(sample.steps)
        kept = page.locator("#detail .steps .kept").count()
        assert kept == sum(s.accepted_trimmed for s in sample.steps)
        shown = sum(len(s.rejected) for s in sample.steps if s.cut != "stop")
        assert page.locator("#detail .steps del").count() == shown
        first = sample.steps[0]
        words = page.locator("#detail .steps li").nth(1).inner_text()
        assert f"step 1: {first.accepted} of {first.k} accepted" in words
        page.select_option("#other", "0")
        page.wait_for_selector("#detail mark")
        assert page.locator("#detail mark").first.inner_text() == " and more"
        page.goto(f"{address}#sample=7&run=0")
        page.wait_for_function("() => document.querySelector('#detail h3').textContent.includes('#7 ')")
        page.goto(f"{address}#sample=99999&run=0")
        page.wait_for_selector("#detail .missing")
        assert tab.said == []


def test_tables_sort_by_keyboard(chromium: Any, address: str) -> None:
    with Tab(chromium, address) as tab:
        head = tab.page.locator("table.sortable th", has_text="strict-match")
        head.locator("button").focus()
        tab.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        values = tab.page.locator("table.sortable tbody tr td:nth-child(5)")
        numbers = [float(values.nth(i).get_attribute("data-sort")) for i in range(values.count())]
        assert numbers == sorted(numbers, reverse=True)
        tab.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"


def test_hostile_output_is_inert(chromium: Any, tmp_path: Path) -> None:
    run = make_run(60)
    nasty = [
        HOSTILE, "</script><script>alert(1)</script>", "<svg/onload=alert(1)>", "\u202eabc\u2066", "\x00\x01",
        "javascript:alert(1)", "]]>--><img src=x onerror=alert(1)>", "x" * 1_000_000, "\n" * 5000, "\ud800",
    ]  # fmt: skip
    bad = [
        replace(s, text=text, question=text, gold=text, category=text, extracted={STRICT: text, text[:40]: text},
                error=text if i % 3 == 2 else "", pieces=(text,), scores={STRICT: 0.0})
        for i, (s, text) in enumerate(zip(run.samples, nasty, strict=False))
    ]  # fmt: skip
    run = replace(run, samples=(*bad, *run.samples[len(bad) :]), cell={**run.cell, "target": HOSTILE})
    with Tab(chromium, write(tmp_path, run)) as tab:
        for doc in range(len(nasty)):
            tab.page.evaluate("h => { location.hash = h; }", f"#sample={doc}")
            tab.page.wait_for_function(
                "d => document.querySelector('#detail h3')?.textContent.includes(`#${d} `)", arg=doc
            )
        assert tab.said == [] and len(tab.asked) == 1
        assert tab.page.locator("#detail script, #detail img, #detail svg").count() == 0
        shown = tab.page.evaluate("document.body.textContent")
        assert "\u202e" not in shown and "\u2066" not in shown and "\x00" not in shown


def test_without_the_api_or_with_damage_it_says_so(chromium: Any, alone: str, tmp_path: Path) -> None:
    page = chromium.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(alone)
    assert "cannot unpack" in page.locator("#no-samples").inner_text()
    page.close()
    text = Path(alone.removeprefix("file://")).read_text("utf-8")
    at = text.index('data-run="0">') + 200
    (tmp_path / "d.html").write_text(text[:at] + "AAAA" + text[at + 4 :], "utf-8")
    with Tab(chromium, (tmp_path / "d.html").as_uri()) as tab:
        tab.page.locator("#samples").scroll_into_view_if_needed()
        tab.page.wait_for_selector("#no-samples:not([hidden])")
        assert "damaged" in tab.page.locator("#no-samples").inner_text()


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_page_scrolls_sideways(chromium: Any, address: str, alone: str, width: int) -> None:
    for place in (address, f"{alone}#sample=3"):
        with Tab(chromium, place, viewport={"width": width, "height": 844}) as tab:
            tab.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            if "#" in place:
                tab.page.wait_for_selector("#detail .steps")
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_no_check_and_no_caption_is_cut(chromium: Any, address: str, alone: str, width: int) -> None:
    """And a browser still takes the checks for a table: a row a check, its cells behind it."""
    for place in (address, alone):
        with Tab(chromium, place, viewport={"width": width, "height": 844}) as tab:
            tab.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            ends = (
                "[...document.querySelectorAll('.checks td, .checks tbody th, .said')].filter((e) => e.offsetWidth > 1)"
            )
            over = f"{ends}.filter((e) => e.getBoundingClientRect().right > {width}).map((e) => e.textContent)"
            assert tab.page.evaluate(f"{ends}.length") > 10 and tab.page.evaluate(over) == []
            assert tab.page.get_by_role("row").filter(has_text="accuracy").first.get_by_role("rowheader").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chromium: Any, address: str, alone: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for place in (f"{address}#sample=33&run=1", f"{alone}#sample=20"):
        with Tab(chromium, place, color_scheme=scheme) as tab:
            tab.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            tab.page.wait_for_selector("#detail h3")
            found = axe.run(tab.page).response["violations"]
        told = {v["id"]: [n["html"][:200] for n in v["nodes"][:3]] for v in found if v["impact"] in SERIOUS}
        assert told == {}


def test_the_served_index_and_history_are_clean_too(chromium: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for day in range(1, 5):
        store(tmp_path, make_run(40, wrong=3 + 20 * (day == 4), seed=day), f"2026-11-0{day}T00:00:00+00:00")
    with make_server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        root = f"http://127.0.0.1:{server.server_address[1]}"
        with Tab(chromium, f"{root}/") as tab:
            assert tab.page.locator(".warning").count() == 1  # the last run's score is another
            told = [v["id"] for v in axe.run(tab.page).response["violations"] if v["impact"] in SERIOUS]
            tab.page.keyboard.press("Tab")
            for box in tab.page.locator("input[name=run]").all()[:2]:
                box.focus()
                tab.page.keyboard.press("Space")
            tab.page.get_by_role("button", name="Report of the chosen runs").press("Enter")
            tab.page.wait_for_selector("#comparison")
            tab.page.go_back()
            tab.page.get_by_role("link", name="history of 4 runs").first.press("Enter")
            tab.page.wait_for_selector("svg.plot")
            told += [v["id"] for v in axe.run(tab.page).response["violations"] if v["impact"] in SERIOUS]
            assert told == [] and tab.page.locator("svg.plot").count() == 2
            assert tab.said == []
        server.shutdown()
        thread.join()


def test_every_control_has_a_name_and_focus_goes_down_the_page(chromium: Any, address: str) -> None:
    with Tab(chromium, address) as tab:
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the evidence"
        tab.page.locator("#samples").scroll_into_view_if_needed()
        tab.page.wait_for_selector("#list a")
        loose = "[...document.querySelectorAll('select, input')].filter(e => !e.closest('label')).length"
        assert tab.page.evaluate(loose) == 0
        unnamed = (
            "[...document.querySelectorAll('svg[role=img]')].filter(s => !s.querySelector('title')?.textContent).length"
        )
        assert tab.page.evaluate(unnamed) == 0
        assert tab.page.evaluate("document.querySelectorAll('[tabindex]').length") > 0
        assert tab.page.evaluate("[...document.querySelectorAll('[tabindex]')].every(e => e.tabIndex <= 0)")


def test_paper_has_the_evidence_and_no_controls(chromium: Any, alone: str) -> None:
    with Tab(chromium, alone) as tab:
        tab.page.emulate_media(media="print")
        assert not tab.page.locator("#explorer").is_visible() and not tab.page.locator("nav").is_visible()
        assert tab.page.locator("h1").is_visible() and tab.page.locator("table.checks").first.is_visible()
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_pager_keeps_the_keyboard(chromium: Any, alone: str) -> None:
    with Tab(chromium, alone) as tab:
        page = tab.page
        page.locator("#samples").scroll_into_view_if_needed()
        page.wait_for_selector("#list a")
        page.get_by_role("button", name="Next").focus()
        for first, focused in (("#100", "Next"), ("#200", "Previous")):  # the last page has no next one
            page.keyboard.press("Enter")
            page.wait_for_function("f => document.querySelector('#list .doc').textContent === f", arg=first)
            assert page.evaluate("document.activeElement.textContent") == focused


def test_another_run_brings_its_own_sample_and_the_address_follows(
    chromium: Any, address: str, runs: list[Run]
) -> None:
    with Tab(chromium, f"{address}#sample=233&run={runs[0].id}") as tab:
        page = tab.page
        page.wait_for_selector("#detail h3")
        page.focus("#which")
        page.select_option("#which", "1")
        page.wait_for_function("() => document.querySelector('#detail h3')?.textContent.includes('of run 1')")
        assert page.url.endswith("#sample=233&run=second")
        assert page.locator("#list [aria-current] .doc").inner_text() == "#233"
        assert page.evaluate("document.activeElement.id") == "which"  # the keyboard stays with the choice


def test_another_run_without_the_sample_closes_it(chromium: Any, runs: list[Run], tmp_path: Path) -> None:
    fewer = replace(runs[1], samples=runs[1].samples[:100])
    with Tab(chromium, f"{write(tmp_path, runs[0], fewer)}#sample=233&run={runs[0].id}") as tab:
        tab.page.wait_for_selector("#detail h3")
        tab.page.select_option("#which", "1")
        tab.page.wait_for_selector("#detail .missing")
        assert "run 1 has no sample of the question" in tab.page.locator("#detail").inner_text()
        assert tab.page.url.endswith("#samples")


@pytest.mark.parametrize(
    ("fragment", "words"),
    [
        ("sample=3&run=x", 'no run "x"'), ("sample=3&run=7", 'no run "7"'), ("sample=", "no sample's number"),
        ("sample=abc", '"abc" is no sample'), ("sample=99999&run=second", "of run 1 (run second) is not in this page"),
        ("sample=3", "names no run"),
    ],
)  # fmt: skip
def test_a_link_that_names_nothing_says_so(chromium: Any, address: str, fragment: str, words: str) -> None:
    with Tab(chromium, f"{address}#{fragment}") as tab:
        tab.page.wait_for_selector("#detail .missing")
        assert words in tab.page.locator("#detail .missing").inner_text()
        assert tab.page.locator("#detail h3").count() == (1 if fragment == "sample=3" else 0)
        assert tab.page.evaluate("document.activeElement.id") == "detail" and tab.said == []


def test_a_link_by_run_id_is_marked_in_the_list(chromium: Any, address: str) -> None:
    with Tab(chromium, f"{address}#sample=233&run=second") as tab:
        page = tab.page
        page.wait_for_selector("#detail .steps")
        assert "Sample #233 of run 1" in page.locator("#detail h3").inner_text()
        assert page.locator("#count").inner_text().endswith("page 3 of 3")
        inside = (
            "(() => { const a = document.querySelector('#list [aria-current]').getBoundingClientRect(), "
            "b = document.querySelector('#list').getBoundingClientRect(); "
            "return a.top >= b.top && a.bottom <= b.bottom; })()"
        )
        assert page.evaluate(inside)
        page.fill("#find", "#17")
        page.wait_for_function("() => document.querySelectorAll('#list a').length === 1")
        page.goto(f"{address}#sample=20&run={make_run(1).id}")  # hidden by the search, and of the other run
        page.wait_for_function("() => document.querySelector('#list [aria-current] .doc')?.textContent === '#20'")
        assert "filter and search were cleared" in page.locator("#count").inner_text()


def test_tokens_say_what_they_are_and_the_same_as_is_seen(chromium: Any, alone: str, runs: list[Run]) -> None:
    with Tab(chromium, f"{alone}#sample=3") as tab:
        tab.page.wait_for_selector("#detail .steps")
        frames = tab.page.locator("#detail .steps li")
        sample = runs[0].samples[3]
        for i, step in enumerate(sample.steps):
            heard = " ".join(frames.nth(i + 1).text_content().split())
            assert f"step {i + 1}: {step.accepted} of {step.k} accepted." in heard
            assert ("accepted: w" in heard) == (step.accepted_trimmed > 0)
            assert ("rejected: r" in heard) == (step.accepted < step.k and step.cut != "stop")
        last = sample.steps[-1]
        assert last.cut == "stop" and "rejected" not in heard  # nothing past a stop was judged
        shown = frames.last.locator(".stop").all_inner_texts()
        assert shown == [f"+{last.k - last.accepted_trimmed} past the stop", "the answer stopped here"]


def test_only_what_scrolls_is_a_stop_and_each_has_its_name(chromium: Any, address: str) -> None:
    stops = (
        "[...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth > e.clientWidth + 1, e.tabIndex === 0, "
        "e.getAttribute('aria-label')])"
    )
    for width in (1280, 390):
        with Tab(chromium, address, viewport={"width": width, "height": 844}) as tab:
            tab.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            tab.page.evaluate("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
            found = tab.page.evaluate(stops)
        assert all(scrolls == stop == (name is not None) for scrolls, stop, name in found)
        named = [name for _, _, name in found if name]
        assert len(named) == len(set(named)) and (len(named) > 10) == (width == 390)


def test_paper_has_the_sample_that_is_open_and_says_what_it_leaves_out(chromium: Any, address: str) -> None:
    with Tab(chromium, f"{address}#sample=33&run=second") as tab:
        page = tab.page
        page.wait_for_selector("#detail .steps")
        assert not page.locator(".onpaper").is_visible()
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("#detail .steps").is_visible() and not page.locator("#filters").is_visible()
        assert "Not on paper" in page.locator(".onpaper").inner_text()
        assert page.locator("details.each[open]").count() == 0
        page.locator("details.each").first.evaluate("d => { d.open = true; }")
        assert page.locator("details.each").first.is_visible() and not page.locator("details.each").nth(1).is_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_no_label_of_a_plot_is_cut_off(chromium: Any, runs: list[Run], tmp_path: Path, width: int) -> None:
    names = ("K=7 nvfp4 MiniMax-M3.1-Flash-INSTRUCT gsm8k_cot_zeroshot A", "W" * 60)
    found = [
        make_subject(r, make_verdict(r), label=name, index=i, baseline=make_baseline(r), references=REFERENCES)
        for i, (r, name) in enumerate(zip(runs, names, strict=True))
    ]
    path = tmp_path / "long.html"
    path.write_text(render_page(found), encoding="utf-8")
    with Tab(chromium, path.as_uri(), viewport={"width": width, "height": 844}) as tab:
        outside = tab.page.evaluate(
            "[...document.querySelectorAll('svg.plot')].flatMap(p => { const b = p.getBoundingClientRect(); "
            "return [...p.querySelectorAll('text')].filter(t => { const a = t.getBoundingClientRect(); "
            "return a.left < b.left - 3 || a.right > b.right + 3 || a.bottom > b.bottom + 3; })"
            ".map(t => p.querySelector('title').textContent.slice(0, 30) + ': ' + t.textContent); })"
        )
        assert outside == []
        whole = " ".join(tab.page.locator("svg.plot").first.locator("text").all_text_contents())
        assert "".join(names[0].split()) in "".join(whole.split())  # no name is shortened
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        tab.page.screenshot(path=str(tmp_path / "shot.png"), full_page=True)


LAID = """[...document.querySelectorAll('svg.plot')].flatMap(p => {
  const b = p.getBoundingClientRect(), name = p.querySelector('title').textContent.slice(0, 30);
  const all = [...p.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  const cut = all.filter(([, a]) => a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1
    || a.bottom > b.bottom + 1).map(([w]) => `${name}: ${w} is cut`);
  const over = all.flatMap(([w, a], i) => all.slice(i + 1).filter(([, c]) =>
    Math.min(a.right, c.right) - Math.max(a.left, c.left) > 2
    && Math.min(a.bottom, c.bottom) - Math.max(a.top, c.top) > 6).map(([v]) => `${name}: ${w} over ${v}`));
  return [...cut, ...over]; })"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("sizes", [(40,), (40, 120), (120, 120)])
def test_no_text_of_a_plot_is_cut_or_lies_over_another(
    chromium: Any, tmp_path: Path, width: int, sizes: tuple[int, ...]
) -> None:
    """A few questions, all answered rightly: the baseline is at the right edge, what could be shown at the left one."""
    found = []
    for i, n in enumerate(sizes):
        run = make_run(n, wrong=0, id=f"run-{i}")
        base, golden = make_baseline(run, wrong=range(0)), make_curve(replace(RECORDED, accepted_length=3.5))
        verdict = judge(run, baseline=base, golden=golden)
        found.append(make_subject(run, verdict, label=f"K=7 float32 ngram of setting {i}", index=i, baseline=base,
                                  golden=golden))  # fmt: skip
    path = tmp_path / "few.html"
    path.write_text(render_page(found), encoding="utf-8")
    with Tab(chromium, path.as_uri(), viewport={"width": width, "height": 844}) as tab:
        assert tab.page.locator("svg.plot").count() > 4
        assert tab.page.evaluate(LAID) == []
