"""lm-eval's own command line, for `evalkit.lm_plugin`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from evalkit.config import task_names
from evalkit.errors import EvalkitError

MISSING = "Tasks not found:"  # how lm-eval's error begins


def lm_eval_command(argv: Sequence[str]) -> None:
    """lm-eval's own command line. Where all tasks are files, its index of 10,000 tasks is not built.

    Raises EvalkitError for a task that is nowhere.
    """
    from lm_eval import tasks as lm_eval_tasks
    from lm_eval.__main__ import cli_evaluate

    words = list(argv)
    named = [words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--tasks", "-t")]
    if named and all(t.endswith((".yaml", ".yml")) for t in ",".join(named).split(",")):
        lm_eval_tasks.TaskManager = partial(lm_eval_tasks.TaskManager, include_defaults=False)  # type: ignore[misc]
    sys.argv = ["lm_eval", *words]
    try:
        cli_evaluate()
    except ValueError as e:
        if not str(e).startswith(MISSING):
            raise
        raise EvalkitError(f"lm-eval knows no task {str(e).removeprefix(MISSING).strip()}",
                           f"use {', '.join(task_names())}, a task of lm-eval (lm_eval ls tasks) or a YAML's path"
                           ) from None  # fmt: skip
