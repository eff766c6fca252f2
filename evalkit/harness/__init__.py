"""Tasks, prompts and scores, through lm-eval. Only this package (and lm_plugin.py) imports lm_eval.

`load_task` gives a LoadedTask with the prompts of the documents wanted. Its `evaluate` runs lm-eval's own evaluator
over them with our generate function as its model, so its filters and metrics give the scores; `score` applies the same
filters to one text, for scores while a run goes on. lm-eval's response cache is never used: it is keyed by prompt, not
by model.
"""

from __future__ import annotations

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read when datasets is imported
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string

from evalkit.harness.command import lm_eval_command
from evalkit.harness.load import load_task, subset
from evalkit.harness.loaded import LoadedTask
from evalkit.harness.prompt import Prompt, Scored
from evalkit.harness.task import arguments

__all__ = [
    "LM", "Instance", "LoadedTask", "Prompt", "Scored", "arguments", "lm_eval_command", "load_task", "register_model",
    "simple_parse_args_string", "subset",
]  # fmt: skip
