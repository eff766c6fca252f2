"""Runs and verdicts for the tests of what a gate writes."""

from __future__ import annotations

import hashlib
from typing import Any

from evalkit.records import Check, Outcome, Run, Sample, StepRecord, Verdict

HOSTILE = "a|b `c` <img src=x onerror=alert(1)> ]]> &amp; \x00\x1b[31m\ud800\u202e *x* [y](http://z) @me www.z.y"
PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_sample(i: int, **more: Any) -> Sample:
    known: dict[str, Any] = {
        "doc_id": i, "doc_hash": sha(f"d{i}"), "prompt_hash": sha(f"p{i}"), "question": f"{i} + 1?",
        "gold": f"#### {i + 1}", "text": f" so\n#### {i + 1}", "finish_reason": "stop", "tokens": 5,
        "steps": tuple(StepRecord(k=7, accepted=a, accepted_trimmed=a) for a in (i % 8, (3 * i) % 8, 2)),
        "scores": {"strict-match": float(i % 5 != 0), "flexible-extract": 1.0},
        "extracted": {"strict-match": f"{i + 1}", "flexible-extract": f"{i + 1}"},
    }  # fmt: skip
    return Sample(**(known | more))


def make_run(n: int = 20, **more: Any) -> Run:
    samples = more.pop("samples", None) or tuple(make_sample(i) for i in range(n))
    known: dict[str, Any] = {
        "id": "run-1", "complete": True, "samples": samples, "expected": n, "task_size": n, "seconds": 1.5,
        "cell": {"target": "m", "draft": "dspark", "task": "gsm8k", "k": 7, "quant": "nvfp4", "temperature": 0.0,
                 "seed": 0, "max_tokens": 64},
        "fingerprint": {"hash": sha("f"), "shots": 5, "stop": ["Question:"], "prompts_sha": sha("p")},
        "provenance": {"started": "2026-11-30T11:29:37+00:00", "finished": "2026-11-30T11:29:47+00:00",
                       "git": {"commit": "abc"}, "versions": {"lm-eval": "0.4.13"}, "image": "rocm/atom:1",
                       "device": "MI355X"},
    }  # fmt: skip
    return Run(**(known | more))


def make_check(name: str = "accuracy", outcome: Outcome = PASS, text: str = "fine", **numbers: Any) -> Check:
    return Check(name=name, outcome=outcome, expected=text, found=text, message=text, numbers=numbers)


def make_verdict(*checks: Check, outcome: Outcome | None = None, run_id: str = "run-1", **more: Any) -> Verdict:
    found = [c.outcome for c in checks]
    worst = FAIL if FAIL in found or not found else INCONCLUSIVE if INCONCLUSIVE in found else PASS
    return Verdict(outcome=outcome or worst, checks=checks, run_id=run_id, **more)


def three_outcomes() -> Verdict:
    """A verdict with a check of each outcome, its texts hostile."""
    return make_verdict(
        make_check(
            HOSTILE, FAIL, HOSTILE, difference=-0.02, interval=(-0.03, -0.01), level=0.9, margin=0.01, paired=20
        ),
        make_check("length", INCONCLUSIVE, "x" * 5000, ratio=0.97, interval=[0.9, 1.01], level=0.9, margin=0.05),
        make_check("requests", PASS, "0 of 20", n=20, limit=0.0),
        notes=(HOSTILE, "y" * 5000),
    )
