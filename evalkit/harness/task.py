"""lm-eval's task over rows that are already read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import datasets
import jinja2
import lm_eval.utils
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from evalkit.config import FEWSHOT_SEED
from evalkit.harness.prompt import sha256_of
from evalkit.taskdata import Row, fields


class RowTask(ConfigurableTask):
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
        return sha256_of(*(str(doc.get(n)) for n in names), "") if names else sha256_of(json.dumps(doc, default=str))

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
