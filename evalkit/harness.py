"""Tasks, prompts and scores, through lm-eval. The only file that imports lm_eval.

A LoadedTask has the prompts of the documents wanted. `evaluate` runs lm-eval's own evaluator over them
with our generate function as its model, so its filters and metrics give the scores; `score` applies the
same filters to one text, for scores while a run goes on. lm-eval's response cache is never used: it is
keyed by prompt, not by model.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, cast

import jinja2

from evalkit.config import FEWSHOT_SEED, Cell, resolve_task
from evalkit.errors import EvalkitError
from evalkit.preflight import stops_of
from evalkit.taskdata import Row, data_files, fields, read_config, read_rows

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import datasets
import lm_eval.utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate as lm_eval_evaluate
from lm_eval.utils import simple_parse_args_string

__all__ = [
    "LM", "Instance", "LoadedTask", "Prompt", "Scored", "arguments", "lm_eval_command", "load_task", "register_model",
    "simple_parse_args_string",
]  # fmt: skip

NOT_HASHED = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata", "tag")  # where data lie, not what they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One document, ready to be asked. `doc_hash` and `prompt_hash` are lm-eval's."""

    doc_id: int
    doc_hash: str
    prompt_hash: str
    text: str
    question: str
    gold: str
    category: str = ""  # the row's `category` or `template`, where it has one
    item: str = ""  # hash of what the templates take from the document ...
    shots: tuple[str, ...] = ()  # ... and the same of each few-shot example in `text`


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What each filter found in a text, and whether that was right."""

    scores: Mapping[str, float]
    extracted: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class LoadedTask:
    """A task with its data read and its prompts built.

    `prompts` are the documents wanted, in the data's order; `size` is how many the task has. `task_sha`
    covers the definition, every document and every prompt of the whole task, wherever the data came from:
    a subset and a full run of it agree.
    """

    name: str
    size: int
    prompts: tuple[Prompt, ...]
    shots: int
    stop: tuple[str, ...]
    max_tokens: int
    task_sha: str
    prompts_sha: str
    files: Mapping[str, Mapping[str, str]]  # split -> path and sha256 of a local file
    filters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader of the run must know of the definition
    _task: _Task = field(repr=False)

    def score(self, doc_id: int, text: str) -> Scored:
        """The task's filters and metric on one text."""
        instance = copy.copy(self._task.by_doc[doc_id])
        instance.resps, instance.filtered_resps = [text], {}
        for ensemble in self._task._filters:
            ensemble.apply([instance])
        results = {
            name: self._task.process_results(instance.doc, [found]) for name, found in instance.filtered_resps.items()
        }
        return Scored(
            scores={key: value for name, metrics in results.items() for key, value in _keyed(name, metrics)},
            extracted={name: _as_text(found) for name, found in instance.filtered_resps.items()},
        )

    def evaluate(self, generate: Callable[[Sequence[Prompt]], Sequence[str]]) -> dict[int, Scored]:
        """Runs lm-eval's evaluator with `generate` as its model. Gives its scores by doc_id."""
        ids = [p.doc_id for p in self.prompts]
        results = lm_eval_evaluate(
            lm=_Adapter(self.prompts, generate),
            task_dict={"tasks": {self.name: self._task}},
            samples={self.name: ids},
            bootstrap_iters=0,
            log_samples=True,
        )
        out: dict[int, Scored] = {}
        for row in cast(dict[str, Any], results)["samples"][self.name]:
            name, seen = row["filter"], out.get(row["doc_id"], Scored(scores={}, extracted={}))
            metrics = {m: row[m] for m in row["metrics"]}
            out[row["doc_id"]] = Scored(
                scores={**seen.scores, **dict(_keyed(name, metrics))},
                extracted={**seen.extracted, name: _as_text(row["filtered_resps"][0])},
            )
        return out


class _Adapter(LM):
    """Our generate function in the shape of an lm-eval model."""

    def __init__(self, prompts: Sequence[Prompt], generate: Callable[[Sequence[Prompt]], Sequence[str]]) -> None:
        super().__init__()
        self._prompts, self._generate = prompts, generate

    def generate_until(self, requests: list[Instance]) -> list[str]:
        asked = [arguments(r)[0] for r in requests]
        if asked != [p.text for p in self._prompts]:
            raise EvalkitError("lm-eval asks other prompts than the task's", "report this as a bug of evalkit")
        return list(self._generate(self._prompts))

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError


class _Task(ConfigurableTask):
    """lm-eval's task over rows that are already read.

    All prompts are built once, in the data's order: few-shot examples are drawn one document after the
    other from one generator, so a subset built on its own would get other examples than the full run.
    """

    def __init__(self, config: dict[str, Any], rows: Mapping[str, Sequence[Row]]) -> None:
        self._rows = rows
        self.by_doc: list[Instance] = []
        self.items: list[tuple[str, tuple[str, ...]]] = []  # hash of each document and of its few-shot examples
        super().__init__(config=config)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self._rows:
            self.dataset = datasets.DatasetDict(
                {split: datasets.Dataset.from_list(list(rows)) for split, rows in self._rows.items()}
            )
        else:
            super().download(dataset_kwargs, **kwargs)

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> Any:
        return self._render(doc, doc_to_text or self.config.doc_to_text) or super().doc_to_text(doc, doc_to_text)

    def doc_to_target(self, doc: Any, doc_to_target: Any = None) -> Any:
        return self._render(doc, doc_to_target or self.config.doc_to_target) or super().doc_to_target(
            doc, doc_to_target
        )

    def _render(self, doc: Any, template: Any) -> str:
        """The text of a template, compiled once (lm-eval compiles at every call), or "" to let lm-eval do it."""
        if self.prompt is not None or not isinstance(template, str) or template in self.features:
            return ""
        text = _template(template).render(**doc)
        special = self.config.doc_to_choice is not None or text[:1] == "["
        return "" if special else text

    def build(self) -> None:
        """Builds the instance of every document."""
        self.set_fewshot_seed(FEWSHOT_SEED)
        self.by_doc, self.items = [], []
        drawn = self._note_shots()
        for i, doc in enumerate(cast(Iterable[Row], self.eval_docs)):
            context = self.fewshot_context(
                doc, num_fewshot=self.config.num_fewshot or 0, gen_prefix=self.doc_to_prefix(doc)
            )
            made = self.construct_requests(doc=doc, ctx=context, metadata=(self.config.task, i, 1))
            self.by_doc.append(cast(Instance, made))
            self.items.append((self._item(doc), tuple(self._item(shot) for shot in drawn)))
            drawn.clear()

    def _note_shots(self) -> list[Row]:
        """A list that holds the few-shot examples of every prompt that is built from now on."""
        drawn: list[Row] = []
        sampler = getattr(self, "sampler", None)
        if sampler is not None:
            sample = type(sampler).sample.__get__(sampler)

            def noted(*args: Any, **kwargs: Any) -> Sequence[Row]:
                docs = sample(*args, **kwargs)
                drawn.extend(docs)
                return docs

            sampler.sample = noted
        return drawn

    def _item(self, doc: Row) -> str:
        """Hash of what a prompt takes from a document: an id or another column that differs hides no leak."""
        names = fields({"doc_to_text": self.config.doc_to_text, "doc_to_target": self.config.doc_to_target})
        return _sha(*(str(doc.get(n)) for n in names), "") if names else _sha(json.dumps(doc, default=str))

    def build_all_requests(self, *, samples: list[int] | None = None, **kwargs: Any) -> None:
        """lm-eval's hook. It numbers the documents of a subset from 0."""
        self._instances = []
        for n, doc_id in enumerate(samples if samples is not None else range(len(self.by_doc))):
            instance = copy.copy(self.by_doc[doc_id])
            instance.resps, instance.filtered_resps, instance.doc_id = [], {}, n
            self._instances.append(instance)


def arguments(instance: Instance) -> tuple[Any, ...]:
    """What lm-eval asks a model with: (context, generation arguments) or (context, continuation)."""
    return cast(Any, instance).args


@lru_cache(maxsize=16)
def _template(text: str) -> jinja2.Template:
    return lm_eval.utils.env.from_string(text)


def _keyed(filter_name: str, metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Scores by filter name; a second metric is named too."""
    first = "exact_match" if "exact_match" in metrics else next(iter(metrics))
    return [(filter_name if m == first else f"{filter_name},{m}", float(v)) for m, v in metrics.items()]


def _as_text(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)


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
    prompts_sha = _sha(*(p.text for p in prompts))
    documents = (part for p in prompts for part in (p.doc_hash, p.gold))
    task_sha = _sha(json.dumps(source, sort_keys=True, default=str), prompts_sha, *documents)
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
        files={split: {"path": str(file), "sha256": _sha(file.read_bytes())} for split, file in sources.items()},
        filters=tuple(str(ensemble.name) for ensemble in task._filters),
        notes=notes,
        _task=task,
    )


def subset(size: int, limit: int, seed: int) -> list[int]:
    """The documents of a limited run: a seeded draw without replacement, in the data's order."""
    if not limit or limit >= size:
        return list(range(size))
    return sorted(random.Random(f"evalkit-subset-{seed}").sample(range(size), limit))


def _construct(config: dict[str, Any], rows: Mapping[str, Sequence[Row]]) -> _Task:
    config = {k: v for k, v in config.items() if k not in ("tag", "group")}
    try:
        return _Task(config, rows)
    except (OSError, ValueError, KeyError, TypeError, jinja2.TemplateError, RuntimeError) as e:
        if rows:
            raise EvalkitError(f"lm-eval refuses the task {config['task']} ({type(e).__name__}: {e})",
                               "mend the task's YAML") from e  # fmt: skip
        raise EvalkitError(
            f"the data of {config['task']} ({config.get('dataset_path')}) could not be fetched ({type(e).__name__})",
            "give them with --data FILE.jsonl (and train.jsonl beside it), or connect to the Hugging Face hub",
        ) from None


def _prompt(i: int, instance: Instance, target: Any) -> Prompt:
    doc, text = cast(Row, instance.doc), str(arguments(instance)[0])
    packed = json.dumps(doc, indent=2, default=str, ensure_ascii=False)
    return Prompt(
        doc_id=i,
        doc_hash=_sha(packed),
        prompt_hash=_sha(text),
        text=text,
        question=str(doc.get("question", text)),
        gold=_as_text(target),
        category=str(doc.get("category") or doc.get("template") or ""),
    )


def _sha(*parts: str | bytes) -> str:
    """sha256 of one text, as lm-eval has it; several are told apart by their lengths."""
    if len(parts) == 1:
        part = parts[0]
        return hashlib.sha256(part.encode() if isinstance(part, str) else part).hexdigest()
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


def lm_eval_command(argv: Sequence[str]) -> None:
    """lm-eval's own command line. Where all tasks are files, its index of 10,000 tasks is not built."""
    from lm_eval import tasks as lm_eval_tasks
    from lm_eval.__main__ import cli_evaluate

    words = list(argv)
    named = [words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--tasks", "-t")]
    if named and all(t.endswith((".yaml", ".yml")) for t in ",".join(named).split(",")):
        lm_eval_tasks.TaskManager = partial(lm_eval_tasks.TaskManager, include_defaults=False)  # type: ignore[misc]
    sys.argv = ["lm_eval", *words]
    cli_evaluate()
