"""The engine as a model of lm-eval's own command: `--model evalkit --model_args k=7,quant=nvfp4`.

lm-eval 0.4.13 looks for models only in its own table and reads no entry points, so a plain `lm_eval` cannot
find this one. Use `python -m evalkit.lm_plugin` with lm_eval's arguments in its place; in Python, importing
this module is enough (`lm_eval.simple_evaluate(model="evalkit", ...)`). A task of tasks/ is given its data
by absolute paths.
"""

from __future__ import annotations

import atexit
import inspect
import math
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from engine.api import Completion, Request, SamplingParams
from engine.config import nearest
from engine.errors import EngineError
from evalkit.answered import request_seed
from evalkit.backends import Backend, Failure, make_backend
from evalkit.config import Cell, task_names
from evalkit.errors import EvalkitError
from evalkit.harness import LM, Instance, arguments, lm_eval_command, register_model, simple_parse_args_string
from evalkit.taskdata import locate

GENERATION = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k")
LOWEST = {"k": 0, "batch": 1, "threads": 0, "tp": 1, "prefill_decode_interval": 0, "seed": 0}  # of whole numbers
CELL_ARGS = ("model", "draft", "k", "quant", "draft_width", "verify", "batch", "threads", "tp", "device",
             "prefix_cache", "prefill_decode_interval", "mono", "graphs", "kernels", "seed")  # fmt: skip


@register_model("evalkit")
class EvalkitLM(LM):
    """The project's engine as an lm-eval model. Arguments are those of Cell.make that concern the engine."""

    def __init__(self, *, backend: Backend | None = None, **args: Any) -> None:
        super().__init__()
        self._cell = cell_from(args)
        self._backend = backend or make_backend(self._cell)
        self._asked: Counter[tuple[str, int]] = Counter()
        self._steps = self._accepted = 0

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Self:
        """Model arguments win over lm-eval's own options; its default device (cuda, cuda:0) means auto."""
        extra = dict(additional_config or {})
        if extra.get("device") in ("cuda", "cuda:0"):
            extra["device"] = "auto"
        return cls(**{**extra, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Self:
        """As create_from_arg_obj, from `k=7,quant=nvfp4`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts of (context, generation arguments) pairs, in order."""
        texts: dict[str, str] = {}

        def on_finish(result: Completion | Failure) -> None:
            if isinstance(result, Failure):
                raise EvalkitError(f"request {result.id} failed: {result.error}")
            if result.forced:
                raise EvalkitError("acceptance was drawn, not verified", "turn synthetic acceptance off")
            texts[result.id] = result.text
            verify = [s for s in result.steps if s.k]
            self._steps += len(verify)
            self._accepted += sum(s.accepted for s in verify)

        self._backend.generate([self._request(i, r) for i, r in enumerate(requests)], on_finish)
        return [texts[str(i)] for i in range(len(requests))]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability, is it the greedy text) of (context, continuation) pairs."""
        scores = self._backend.score([(str(a[0]), str(a[1])) for a in map(arguments, requests)])
        return [(s.logprob, s.greedy) for s in scores]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of whole texts, each as long as the context at most."""
        return [s.logprob for s in self._backend.score([("", str(a[0])) for a in map(arguments, requests)])]

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval puts into the `config` of its results."""
        info: dict[str, Any] = {"cell": self._cell.to_json(), "verify_steps": self._steps}
        if self._steps:
            info["accepted_length"] = 1 + self._accepted / self._steps
        return info

    def _request(self, i: int, instance: Instance) -> Request:
        key = (str(instance.task_name), int(instance.doc_id or 0))
        repeat, self._asked[key] = self._asked[key], self._asked[key] + 1
        seed = request_seed(self._cell.seed, key[1])
        context, generation = arguments(instance)[:2]
        params = sampling(generation, request_seed(seed, repeat) if repeat else seed)
        return Request(id=str(i), prompt=str(context), params=params)


def cell_from(args: dict[str, Any]) -> Cell:
    """The Cell of lm-eval's model arguments. A keyword that nobody knows is an error."""
    given: dict[str, Any] = {
        n: v for n, v in args.items() if n not in ("batch_size", "max_batch_size") and v is not None
    }
    if "draft" in args and args["draft"] is None:
        given["draft"] = "none"  # lm-eval reads the word none as None
    size = args.get("batch_size")
    if size is not None and "batch" not in given and str(size).isdigit():
        given |= {"batch": int(size)} if int(size) > 1 else {}  # lm-eval's 1 means: not said
    for name in given:
        if name not in CELL_ARGS:
            raise EvalkitError(
                f"unknown model argument {name!r}", f"{nearest(name, CELL_ARGS)}use {', '.join(CELL_ARGS)}"
            )
    assert set(CELL_ARGS) <= set(inspect.signature(Cell.make).parameters)
    return Cell.make(**{name: _read(name, value) for name, value in given.items()})


def _read(name: str, value: Any) -> Any:
    """A model argument as Cell.make takes it. lm-eval makes a number or a boolean of every word that looks like one
    (-1 becomes a float in some of its ways in), and leaves any other word a text. Raises EvalkitError for a word where
    a number or a boolean is meant."""
    if name == "prefix_cache":
        if not isinstance(value, bool):
            raise EvalkitError(f"model argument {name}={value}", "give true or false")
        return value
    if name not in LOWEST:
        return str(value)
    whole = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not whole or value != int(value) or value < LOWEST[name]:
        said = f"{value:g}" if isinstance(value, float) else value
        raise EvalkitError(f"model argument {name}={said}", f"give a whole number of at least {LOWEST[name]}")
    return int(value)


def sampling(generation: dict[str, Any], seed: int) -> SamplingParams:
    """SamplingParams of lm-eval's generation arguments."""
    for name in generation:
        if name not in GENERATION:
            raise EvalkitError(f"unknown generation argument {name!r}", f"use {', '.join(GENERATION)}")
    until = generation.get("until") or []
    temperature = float(generation.get("temperature") or 0.0)
    do_sample = generation.get("do_sample")
    if do_sample is False:
        temperature = 0.0
    elif do_sample and "temperature" not in generation:
        temperature = 1.0
    return SamplingParams(
        max_tokens=int(generation.get("max_gen_toks") or 256),
        temperature=temperature,
        top_p=float(generation.get("top_p") or 1.0),
        top_k=int(generation.get("top_k") or 0),
        stop=tuple([until] if isinstance(until, str) else [u for u in until if u]),
        seed=seed,
    )


def with_our_tasks(argv: Sequence[str]) -> list[str]:
    """The arguments with names of tasks/ in --tasks replaced by YAMLs whose data files are absolute."""
    out, known = list(argv), task_names()
    for i, word in enumerate(out[:-1]):
        if word in ("--tasks", "-t"):
            out[i + 1] = ",".join(_absolute(known[t]) if t in known else t for t in out[i + 1].split(","))
    return out


def _absolute(path: Path) -> str:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    files = (config.get("dataset_kwargs") or {}).get("data_files")
    if not files:
        return str(path)
    config["dataset_kwargs"]["data_files"] = {split: str(locate(path, f).resolve()) for split, f in files.items()}
    folder = tempfile.mkdtemp(prefix="evalkit-tasks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder) / f"{config['task']}.yaml"
    made.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return str(made)


def main(argv: Sequence[str] | None = None) -> int:
    """lm_eval's command, with this model and this project's tasks known to it."""
    try:
        lm_eval_command(with_our_tasks(sys.argv[1:] if argv is None else argv))
    except (EngineError, EvalkitError) as e:
        print(f"error: {e.what}", file=sys.stderr)
        if e.fix:
            print(f"fix: {e.fix}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
