"""Options that a server does not hear of: refused, since a run would else be stored as what it was not."""

from __future__ import annotations

from typing import Any

from evalkit.errors import EvalkitError
from evalkit.servers.spec import ServerSpec

# Options of `evalkit run` by name, with the value at which they ask for nothing.
OURS = {"verify": ("", "standard"), "forced_length": (0.0,), "confidence_threshold": (0.0,), "verify_rows": (0,),
        "device": ("auto",)}  # fmt: skip
STARTED = {"batch": (None,), "prefix_cache": (True,), "threads": (0,), "online_quant_config": ("",)}
SPEC = {"tp": 1, "port": 0, "max_model_len": 0, "memory_share": 0.9, "graph_sizes": (), "program": "",
        "remote_code": False}  # fmt: skip
NAMES = {"prefix_cache": "--no-prefix-cache", "program": "--server-program", "remote_code": "--trust-remote-code"}


def refuse_unheard(spec: ServerSpec, **given: Any) -> None:
    """Raises EvalkitError for an option that was given and that this server can't obey: one of our own engine, or one
    of a server's start where it runs already. `given` are OURS, STARTED and draft_width as `Cell.make` has them."""
    for name, silent in OURS.items():
        if given[name] not in silent:
            raise EvalkitError(f"{_option(name)} is of the built-in engine: a server does not hear of it",
                               f"leave {_option(name)} away; a server's own options set it")  # fmt: skip
    if given["draft_width"] != "k" and (spec.engine != "openai" or not spec.base_url):
        raise EvalkitError(f"--draft-width is of the built-in engine and of evalkit serve, not of {spec.engine}",
                           "leave --draft-width away")  # fmt: skip
    if spec.base_url:
        odd = [name for name, silent in STARTED.items() if given[name] not in silent]
        odd += [name for name, silent in SPEC.items() if getattr(spec, name) != silent]
        if odd:
            raise EvalkitError(f"{_option(odd[0])} with --base-url: that server runs already and does not hear of it",
                               f"leave {_option(odd[0])} away; the server's own options set it")  # fmt: skip
    elif given["threads"] and spec.engine != "llamacpp":
        raise EvalkitError(f"--threads is of the built-in engine and of llama.cpp, not of {spec.engine}",
                           "leave --threads away, or use --server-arg")  # fmt: skip


def _option(name: str) -> str:
    return NAMES.get(name, f"--{name.replace('_', '-')}")
