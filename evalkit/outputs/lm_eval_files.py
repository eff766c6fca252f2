"""A run as lm-eval's own output: results_TIME.json and samples_TASK_TIME.jsonl, for programs that read those.

InferenceX's score validator takes every number named `exact_match,FILTER` and compares it with its own bar; ATOM's
dashboard takes `exact_match,flexible-extract` of `gsm8k` and `atom_ci_metadata`. Both, and ATOM's gate, let a missing
or non-numeric score pass by, and neither asks how many samples it is of. So a run whose scores are not those of all its
samples, verified and finite, gets no results file at all: no file is the one thing that none of them takes for a pass.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from evalkit import stats
from evalkit.acceptance import of_run
from evalkit.errors import EvalkitError
from evalkit.files import write_text
from evalkit.fingerprint import online_facts
from evalkit.outputs.common import judged_runs, plain, safe
from evalkit.records import Outcome, Run, Sample, Verdict
from evalkit.runfile import read_json

GSM8K = {"gsm8k_inferencex": "gsm8k"}  # our name of a task that readers of its results know by another
MARK = "evalkit"  # key in a results file by which we know one of ours


def write_lm_eval(verdicts: Sequence[Verdict], runs: Sequence[Run], path: Path) -> list[str]:
    """Writes the files into the folder `path`, for several runs into one folder each. Returns what was not written.

    Raises EvalkitError where the folder holds results that evalkit did not write: a reader would take them for ours.
    """
    said = []
    both = judged_runs(verdicts, runs)
    folders = [path if len(both) == 1 else path / _name(run.id).lstrip(".") for _, run in both]
    for folder in folders:
        clear(folder)
    for (verdict, run), folder in zip(both, folders, strict=True):
        stamp = _stamp(run)
        if why := unfit(run):
            said.append(f"no lm-eval results of {run.id}: {why}")
        else:
            text = json.dumps(results(verdict, run), indent=2, allow_nan=False) + "\n"
            write_text(folder / f"results_{stamp}.json", text)
        rows = "".join(json.dumps(row, allow_nan=False) + "\n" for s in run.samples for row in sample_rows(s, run))
        write_text(folder / f"samples_{task_key(run)}_{stamp}.jsonl", rows)
    return said


def clear_all(path: Path) -> None:
    """Removes what evalkit wrote into `path` before, the folders of single runs included: it must outlive no error."""
    clear(path)
    for folder in {file.parent for file in path.glob("*/results*.json") if _is_ours(file)}:
        clear(folder)


def clear(folder: Path) -> None:
    """Removes results that evalkit wrote there before; refuses those of anybody else and then removes nothing."""
    old = sorted(folder.glob("results*.json"))
    if theirs := [file for file in old if not _is_ours(file)]:
        raise EvalkitError(f"{theirs[0]} is not evalkit's: it would be read with the new one", "give another folder")
    for file in [*old, *(folder.glob("samples_*.jsonl") if old else ())]:
        file.unlink()


def _is_ours(file: Path) -> bool:
    try:
        return MARK in read_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def unfit(run: Run) -> str:
    """Why a run has no score that a reader could take; "" where it has one."""
    failed, forced = sum(bool(s.error) for s in run.samples), sum(s.forced for s in run.samples)
    if not run.samples:
        return "it has no samples"
    if not run.complete or (len(run.samples) != run.expected and not run.stopped):
        return f"it is incomplete ({len(run.samples)} of {run.expected} samples)"
    if failed:
        return f"{failed} requests failed"
    if forced:
        return "its acceptance was forced, so its text is not the target's"
    broken = sum(any(v not in (0, 1) for v in s.scores.values()) or not s.scores for s in run.samples)
    names = {frozenset(s.scores) for s in run.samples}
    if broken or len(names) != 1:
        return f"{broken or 'some'} scores are no scores"
    if len({s.doc_id for s in run.samples}) != len(run.samples):
        return "a sample is there twice"
    return ""


def task_key(run: Run) -> str:
    """The task by the name that readers look for, fit for a file's name."""
    task = str(run.cell.get("task"))
    task = task.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".yml")
    return _name(GSM8K.get(task, task))


def _name(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)


def results(verdict: Verdict, run: Run) -> dict[str, Any]:
    """The results file's values. `n-samples` tells a subset; `evalkit` holds the verdict that these scores got."""
    task, n = task_key(run), len(run.samples)
    seed, shots = run.cell.get("seed"), run.fingerprint.get("shots", run.cell.get("shots"))
    generation = {name: plain(run.cell.get(name)) for name in ("temperature", "top_p", "top_k")}
    generation |= {"until": plain(run.fingerprint.get("stop")), "max_gen_toks": plain(run.cell.get("max_tokens"))}
    metrics: dict[str, Any] = {"alias": task}
    for name in run.samples[0].scores:
        correct = sum(int(s.scores[name]) for s in run.samples)
        se = stats.proportion_se(correct, n)
        metrics[f"exact_match,{name}"] = correct / n
        metrics[f"exact_match_stderr,{name}"] = "N/A" if se is None else se  # lm-eval's own words for one sample
    config = {"task": safe(run.cell.get("task")), "num_fewshot": shots, "repeats": 1, "output_type": "generate_until",
              "generation_kwargs": generation}  # fmt: skip
    started, finished = _time(run, "started"), _time(run, "finished")
    return {
        "results": {task: metrics},
        "group_subtasks": {task: []},
        "configs": {task: config},
        "versions": {task: plain(run.fingerprint.get("task_version", "N/A"))},
        "n-shot": {task: shots},
        "higher_is_better": {task: {"exact_match": True}},
        "n-samples": {task: {"original": run.task_size, "effective": n}},
        "config": {
            "model": "evalkit",
            "model_args": {name: plain(run.cell.get(name)) for name in ("target", "draft", "k", "quant")}
            | {"model": plain(run.cell.get("target")), **online_facts(run)},
            "num_fewshot": shots,
            "limit": float(n) if n < run.task_size else None,
            "gen_kwargs": generation,
            "random_seed": seed,
        },
        "git_hash": plain((run.provenance.get("git") or {}).get("commit")),
        "date": started,
        "lm_eval_version": plain((run.provenance.get("versions") or {}).get("lm-eval")),
        "transformers_version": plain((run.provenance.get("versions") or {}).get("transformers")),
        "task_hashes": {task: plain(run.fingerprint.get("prompts_sha"))},
        "model_source": "evalkit",
        "model_name": plain(run.cell.get("target")),
        "start_time": started,
        "end_time": finished,
        "total_evaluation_time_seconds": str(run.seconds),
        "atom_ci_metadata": _atom(verdict, run),
        MARK: {
            "run": run.id,
            "verdict": verdict.outcome.value,
            "fingerprint": plain(run.fingerprint.get("hash")),
            "stopped": safe(run.stopped),
        },
    }


def _atom(verdict: Verdict, run: Run) -> dict[str, Any]:
    """What ATOM's dashboard reads: acceptance in per cent, tokens a verify step. It may show a pass of a whole run."""
    whole = len(run.samples) == run.task_size
    found: dict[str, Any] = {"dashboard_publish_allowed": verdict.outcome is Outcome.PASS and whole}
    for key, name in (("docker_image", "image"), ("gpu_name", "device")):
        if said := run.provenance.get(name):
            found[key] = safe(said)
    k = run.cell.get("k")
    if not k:
        return found
    try:
        acceptance = of_run(run)
    except EvalkitError:  # counts that contradict each other are no acceptance
        return found
    if acceptance.problems:  # counts that are no evidence are no figure either
        return found
    if acceptance.accepted_length is not None and acceptance.acceptance_rate is not None:
        found["mtp_acceptance_rate"] = round(100 * acceptance.acceptance_rate, 4)
        found["avg_tokens_per_forward"] = round(acceptance.accepted_length, 4)
    return found


def sample_rows(sample: Sample, run: Run) -> list[dict[str, Any]]:
    """A sample's rows, one for each filter as lm-eval has them; a failed request has one with its error and no score.
    The prompt itself is not stored, only its hash."""
    common = {
        "doc_id": sample.doc_id,
        "doc": {"question": safe(sample.question), "answer": safe(sample.gold)},
        "target": safe(sample.gold),
        "resps": [[safe(sample.text)]],
        "doc_hash": sample.doc_hash,
        "prompt_hash": sample.prompt_hash,
        "target_hash": hashlib.sha256(sample.gold.encode(errors="replace")).hexdigest(),
    }
    if sample.error or sample.forced:
        return [common | {"error": safe(sample.error or "acceptance was forced")}]
    return [
        common
        | {"filter": name, "filtered_resps": [safe(sample.extracted.get(name, ""))], "metrics": ["exact_match"],
           "exact_match": plain(score)}
        for name, score in sample.scores.items()
    ]  # fmt: skip


def _time(run: Run, name: str) -> float | None:
    """Seconds since the epoch; None where the run does not say."""
    try:
        return datetime.fromisoformat(str(run.provenance.get(name))).timestamp()
    except ValueError:
        return None


def _stamp(run: Run) -> str:
    """The time in a file's name, as lm-eval writes it: colons would not do on every system."""
    said = str(run.provenance.get("finished") or run.provenance.get("started") or run.id)
    return re.sub(r"[^\w.+-]", "-", said)
