"""Runs out of which golden curves and baselines are made."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from evalkit.records import Run, Sample, StepRecord

REPO = Path(__file__).resolve().parents[2]
GOLDEN = REPO / "golden"
MARKS = {"target_sha": "t1", "draft_sha": "d1", "task_sha": "q1", "draft_width": "k", "temperature": 0.0}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_run(k: int = 3, n: int = 60, share: float = 0.7, seed: int = 0, **more: object) -> Run:
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(n):
        steps = tuple(
            StepRecord(k=k, accepted=int(a), accepted_trimmed=int(a)) for a in (rng.binomial(k, share, 12) if k else [])
        )
        strict = float(rng.random() < 0.95)
        samples.append(
            Sample(
                doc_id=i, doc_hash=sha(f"doc {i}"), prompt_hash=sha(f"prompt {i}"), question="q", gold="1", steps=steps,
                scores={"strict-match": strict, "flexible-extract": 1.0}, finish_reason="stop",
                tokens=1 + sum(s.accepted + 1 for s in steps),
            )
        )  # fmt: skip
    cell = {"target": "gradeschool-m3", "draft": "dspark" if k else "none", "task": "gradeschool", "k": k,
            "quant": "float32", "temperature": 0.0, "shots": 0}  # fmt: skip
    run = Run(
        id=f"run-k{k}-{seed}", complete=True, cell=cell, fingerprint=MARKS | {"quant": "float32", "k": k},
        provenance={}, samples=tuple(samples), expected=n, task_size=n,
    )  # fmt: skip
    return dataclasses.replace(run, **more)  # type: ignore[arg-type]


def marked(run: Run, **marks: object) -> Run:
    return dataclasses.replace(run, fingerprint={**run.fingerprint, **marks})


def with_cell(run: Run, **cell: object) -> Run:
    return dataclasses.replace(run, cell={**run.cell, **cell})
