"""A task with its prompts, and its scores: by lm-eval's evaluator at the end, by the same filters on the way."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_eval_evaluate

from evalkit.errors import EvalkitError
from evalkit.harness.prompt import Prompt, Scored
from evalkit.harness.task import RowTask, arguments


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
    chat: bool = False  # written for a chat model
    documents: Mapping[str, str] = field(default_factory=dict)  # sha256 of all of them, and what the task pins
    notes: tuple[str, ...] = ()  # what a reader of the run must know of the definition
    _task: RowTask = field(repr=False)

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
            extracted={name: as_text(found) for name, found in instance.filtered_resps.items()},
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
                extracted={**seen.extracted, name: as_text(row["filtered_resps"][0])},
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


def _keyed(filter_name: str, metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Scores by filter name; a second metric is named too."""
    first = "exact_match" if "exact_match" in metrics else next(iter(metrics))
    return [(filter_name if m == first else f"{filter_name},{m}", float(v)) for m, v in metrics.items()]


def as_text(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)
