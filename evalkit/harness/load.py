"""A cell's task: its definition and data read, its prompts built, before anything runs."""

from __future__ import annotations

import copy
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jinja2
from lm_eval.api.instance import Instance

from evalkit.config import Cell, resolve_task
from evalkit.errors import EvalkitError
from evalkit.harness.hub import offline_where_unreachable
from evalkit.harness.loaded import LoadedTask, as_text
from evalkit.harness.prompt import Prompt, sha256_of
from evalkit.harness.task import RowTask, arguments
from evalkit.taskdata import CHAT_TASKS, Row, data_files, fields, read_config, read_rows, stops_of

NOT_HASHED = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata", "tag")  # where data lie, not what they are
REFUSALS = (OSError, ValueError, KeyError, TypeError, jinja2.TemplateError, RuntimeError)  # lm-eval's, and its loaders'


def load_task(cell: Cell) -> LoadedTask:
    """Reads the cell's task and data and builds its prompts. Nothing runs before all of it is sound."""
    for noisy in ("lm_eval", "huggingface_hub", "datasets"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    path = resolve_task(cell.task)
    config = read_config(path)
    if cell.shots is not None:
        config["num_fewshot"] = cell.shots
    shots = int(config.get("num_fewshot") or 0)
    sources = data_files(cell, config, path, shots)
    rows = {split: read_rows(file, fields(config)) for split, file in sources.items()}
    source = copy.deepcopy({k: v for k, v in config.items() if k not in NOT_HASHED})
    if rows:
        config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": None}
        few = str(config.get("fewshot_split") or config.get("training_split"))
        if shots and len(rows[few]) <= shots:
            raise EvalkitError(f"{sources[few]} has {len(rows[few])} examples for {shots} shots", "use fewer shots")
        if few not in rows:  # no shots: the split is not needed
            config |= {"fewshot_split": None, "training_split": None}
    task = _construct(config, rows)
    task.build()
    prompts = [
        replace(_prompt(i, instance, task.doc_to_target(instance.doc)), item=item, shots=drawn)
        for i, (instance, (item, drawn)) in enumerate(zip(task.by_doc, task.items, strict=True))
    ]
    prompts_sha = sha256_of(*(p.text for p in prompts))
    documents = (part for p in prompts for part in (p.doc_hash, p.gold))
    task_sha = sha256_of(json.dumps(source, sort_keys=True, default=str), prompts_sha, *documents)
    found = {"sha256": sha256_of(*(json.dumps(i.doc, sort_keys=True, default=str) for i in task.by_doc))}
    found |= {"pinned": str(pin)} if (pin := (config.get("metadata") or {}).get("documents_sha256")) else {}
    if sources and cell.data is None:
        _refuse_changed(config["task"], found, len(prompts))
    generation = config.get("generation_kwargs") or {}
    stop, notes = stops_of(generation.get("until"), config["task"])
    return LoadedTask(
        name=config["task"],
        size=len(prompts),
        prompts=tuple(prompts[i] for i in subset(len(prompts), cell.limit, cell.seed)),
        shots=shots,
        stop=stop,
        max_tokens=cell.max_tokens or int(generation.get("max_gen_toks") or 256),
        task_sha=task_sha,
        prompts_sha=prompts_sha,
        files={split: {"path": str(file), "sha256": sha256_of(file.read_bytes())} for split, file in sources.items()},
        filters=tuple(str(ensemble.name) for ensemble in task._filters),
        chat=config["task"] in CHAT_TASKS,
        documents=found,
        notes=notes,
        _task=task,
    )


def subset(size: int, limit: int, seed: int) -> list[int]:
    """The documents of a limited run: a seeded draw without replacement, in the data's order."""
    if not limit or limit >= size:
        return list(range(size))
    return sorted(random.Random(f"evalkit-subset-{seed}").sample(range(size), limit))


def _refuse_changed(name: str, documents: Mapping[str, str], n: int) -> None:
    """Documents that came with the task are those that it pins."""
    here, pinned = documents["sha256"], documents.get("pinned", documents["sha256"])
    if here != pinned:
        told = f"its {n} documents have the sha256 {here[:12]}, the task pins {pinned[:12]}"
        raise EvalkitError(f"the data of {name} were changed: {told}", "restore them, or give yours with --data")


def _construct(config: dict[str, Any], rows: Mapping[str, Sequence[Row]]) -> RowTask:
    config = {k: v for k, v in config.items() if k not in ("tag", "group")}
    if not rows:
        return _from_hub(config)
    try:
        return RowTask(config, rows)
    except REFUSALS as e:
        raise EvalkitError(f"lm-eval refuses the task {config['task']} ({type(e).__name__}: {e})",
                           "mend the task's YAML") from e  # fmt: skip


def _from_hub(config: dict[str, Any]) -> RowTask:
    """A task whose data lm-eval fetches itself."""
    with offline_where_unreachable() as offline:
        try:
            return RowTask(config, {})
        except REFUSALS as e:
            why = "the Hugging Face hub does not answer, or is switched off" if offline else type(e).__name__
            raise EvalkitError(
                f"the data of {config['task']} ({config.get('dataset_path')}) could not be fetched ({why})",
                "give them with --data FILE.jsonl (and train.jsonl beside it), or connect to the Hugging Face hub",
            ) from None


def _prompt(i: int, instance: Instance, target: Any) -> Prompt:
    doc, text = cast(Row, instance.doc), str(arguments(instance)[0])
    packed = json.dumps(doc, indent=2, default=str, ensure_ascii=False)
    return Prompt(
        doc_id=i,
        doc_hash=sha256_of(packed),
        prompt_hash=sha256_of(text),
        text=text,
        question=str(doc.get("question", text)),
        gold=as_text(target),
        category=str(doc.get("category") or doc.get("template") or ""),
    )
