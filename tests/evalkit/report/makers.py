"""Runs, standards and verdicts for the report's tests, and a reader of pages."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from evalkit.baseline import FLEXIBLE, HASH_CHARS, STRICT, Baseline, ReferenceScore, Row
from evalkit.golden import Curve, GoldenValue
from evalkit.records import Check, Outcome, Run, Sample, StepRecord, Verdict
from evalkit.report.render import render
from evalkit.report.subject import Subject

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \u202eevil\x00 {{ 7*7 }} \ud800"


def make_sample(i: int, rng: random.Random, k: int, *, right: bool = True) -> Sample:
    gold = str(rng.randint(2, 900))
    answer = gold if right else str(int(gold) + 1)
    steps = []
    for _ in range(rng.randint(8, 16) if k else 0):
        accepted = next((j for j in range(k) if rng.random() > 0.82 - 0.02 * j), k)
        sure = tuple(min(0.99, 0.82 - 0.02 * j + rng.uniform(-0.1, 0.1)) for j in range(k))
        steps.append(StepRecord(k=k, accepted=accepted, accepted_trimmed=accepted, confidence=sure))
    if steps:
        last = steps[-1]
        steps[-1] = replace(last, accepted_trimmed=max(0, last.accepted - 2), cut="stop")
    return Sample(
        doc_id=i,
        doc_hash=hashlib.sha256(f"doc {i}".encode()).hexdigest(),
        prompt_hash=hashlib.sha256(f"prompt {i}".encode()).hexdigest(),
        question=f"Ivan and Olga pay ${i} for a table. They sell 8 beads at $4 each and 6 cups at $3 each and share "
        "the rest equally. How many dollars does each get?",
        gold=gold,
        text=f" The beads bring 8 * 4 = $32.\nThe cups bring 6 * 3 = $18.\nEach gets {answer}.\n#### {answer}",
        finish_reason="stop",
        tokens=45,
        steps=tuple(steps),
        scores={STRICT: float(right), FLEXIBLE: float(right)},
        extracted={STRICT: answer, FLEXIBLE: answer},
    )


def make_run(n: int = 200, k: int = 7, *, wrong: int = 12, seed: int = 3, **changes: Any) -> Run:
    rng = random.Random(seed)
    items = [make_sample(i, rng, k, right=i >= wrong) for i in range(n)]
    base = Run(
        id=f"gradeschool-gradeschool-m3-dspark-k{k}-nvfp4-20261130-0911",
        complete=True,
        cell={"target": "gradeschool-m3", "draft": "dspark" if k else "none", "k": k, "draft_width": "k",
              "quant": "nvfp4", "task": "gradeschool", "shots": None, "temperature": 0.0, "limit": 0, "max_batch": 64},
        fingerprint={"shots": 0, "dtype": "auto", "device": "cpu", "draft_sha": "cd" * 32,
                     "hash": "12" * 32, "target_sha": "ab" * 32, "task_sha": "ef" * 32,
                     "draft_width": "k", "temperature": 0.0},
        provenance={"git": {"commit": "1234567890abcdef", "dirty": False}, 
                    "versions": {"torch": "2.13.0", "triton": ""},
                    "cpu": "Some CPU", "started": "2026-11-30T09:11:00+00:00"},
        samples=tuple(items),
        expected=n,
        task_size=n,
        seconds=133.4,
        output_tokens=45 * n,
    )  # fmt: skip
    return replace(base, **changes)


def make_baseline(run: Run, wrong: range = range(4, 15)) -> Baseline:
    rows = {
        s.doc_hash[:HASH_CHARS]: Row(s.prompt_hash[:HASH_CHARS], int(s.doc_id not in wrong), int(s.doc_id not in wrong))
        for s in run.samples
    }
    marks = {key: run.fingerprint[key] for key in ("target_sha", "task_sha")}
    return Baseline(run_id="base-k0", target="gradeschool-m3", task="gradeschool", rows=rows, fingerprint=marks,
                    source="gradeschool-m3_gradeschool.baseline.json")  # fmt: skip


def make_golden(k: int = 7, length: float = 4.04, **more: Any) -> GoldenValue:
    return GoldenValue(k=k, accepted_length=length, mode="thinking_off", source="gradeschool-m3_dspark.yaml", **more)


def make_curve(*values: GoldenValue) -> Curve:
    by_k = {v.k: v for v in values}
    return Curve(model="gradeschool-m3", source="gradeschool-m3_dspark.yaml", values={"thinking_off": by_k})


RECORDED = make_golden(se=0.03, clusters=1319, steps=15000, interval=(3.98, 4.10),
                       histogram=(3000, 2300, 1800, 1500, 1300, 1000, 900, 3200))  # fmt: skip
REFERENCES = (
    ReferenceScore(name="embedded float32", target="gradeschool-m3", task="gradeschool", shots=0, metric=STRICT,
                   score=0.9431, n=1319, correct=1244, stderr=0.0064, gates=False,
                   source="model card", protocol="zero-shot, greedy"),
    ReferenceScore(name="SGLang", target="minimax-m3.1-flash", task="gsm8k", shots=5, metric=STRICT,
                   score=0.9598, n=1319, correct=1266, stderr=0.0054, gates=True,
                   source="SGLang CI", protocol="5-shot, chat template"),
)  # fmt: skip


def make_verdict(run: Run, outcome: Outcome = Outcome.INCONCLUSIVE) -> Verdict:
    """A verdict of the shape that the gate gives; the page must not depend on which checks there are."""
    found = "strict-match 0.9400 (188/200)"
    checks = (
        Check(name="completeness", outcome=Outcome.PASS, expected="all samples, each once", 
              found=f"{len(run.samples)} samples",
              message="the whole task, each sample once", numbers={"found": len(run.samples)}),
        Check(name="accuracy", outcome=outcome, expected="strict-match at most 1 pt below the baseline",
              found=found, message=f"{found} against baseline 0.9450 (189/200), 200 paired, 4 lost and 3 won: -0.5 pt, "
              "p 0.36 for a loss under 1 pt; 2,141 questions would settle this one",
              numbers={"paired": 200}),
        Check(name="accepted length", outcome=Outcome.PASS, expected="at most 5 % below golden",
              found="accepted length 4.1", message="ratio 1.01, 90 % 0.99 .. 1.03, p 0.0001 for a loss under 5 %"),
        Check(name="reference SGLang", outcome=outcome, expected="at most 2 pt below 0.9598", found="0.9400",
              message="unpaired", numbers={"paired": 0}),
    )  # fmt: skip
    return Verdict(outcome=outcome, checks=checks, run_id=run.id, notes=("protocol of SGLang: 5-shot",))


def make_page(run: Run, **more: Any) -> str:
    return render(run, make_verdict(run), **more)


def make_subject(run: Run, verdict: Verdict | None = None, *, label: str = "", index: int = 0, **more: Any) -> Subject:
    """A run on a page; with the words of `render`."""
    known = {"golden": None, "baseline": None, "references": (), **more}
    return Subject(
        run=run, verdict=verdict, label=label or f"K={run.cell['k']} {run.cell['quant']}", index=index, **known
    )


class Reader(HTMLParser):
    """The tags of a page, its visible text, and what its attributes would load."""

    VOID = ("meta", "link", "img", "br", "line", "rect", "circle", "path", "use", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def make_pair() -> list[Subject]:
    """K=5 and K=7 on the same questions, judged."""
    golden = make_curve(RECORDED)
    runs = [make_run(120, k, id=f"run-{k}") for k in (5, 7)]
    return [
        make_subject(r, make_verdict(r), label=f"K={r.cell['k']}", index=i, baseline=make_baseline(r), golden=golden)
        for i, r in enumerate(runs)
    ]
