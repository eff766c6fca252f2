"""The options of `evalkit run` that concern an engine outside, and the ServerSpec they make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from evalkit.errors import EvalkitError
from evalkit.servers.spec import ServerSpec

BUILT_IN = "built-in"

Engine = Annotated[str, typer.Option("--engine", help="built-in, or a server: atom, sglang, vllm, trtllm, llamacpp, openai.")]  # fmt: skip # noqa: E501
BaseUrl = Annotated[str, typer.Option("--base-url", help="Server: use this one; without it, --engine is started.")]
Endpoint = Annotated[str, typer.Option("--endpoint", help="Server: completions, chat or generate.  [default: the engine's]")]  # fmt: skip # noqa: E501
Thinking = Annotated[str, typer.Option("--thinking", help="Server: on or off, probed; server sends no switch.")]
ServedName = Annotated[str, typer.Option("--served-name", help="Server: the model's name there.  [default: --model's]")]
Revision = Annotated[str, typer.Option("--revision", help="Server: revision of its weights, where --model is no folder.")]  # fmt: skip # noqa: E501
ExtraBody = Annotated[str, typer.Option("--extra-body", help="Server: JSON object added to every request.")]
Concurrency = Annotated[int, typer.Option("--concurrency", help="Server: requests at once.")]
Stream = Annotated[bool, typer.Option("--stream/--no-stream", help="Server: stream answers, to notice a stall.")]
RequestTimeout = Annotated[float, typer.Option("--request-timeout", help="Server: seconds a request may take.")]
StallTimeout = Annotated[float, typer.Option("--stall-timeout", help="Server: seconds between two chunks of a stream.")]
Retries = Annotated[int, typer.Option("--retries", help="Server: times that a request is sent again after a fault.")]
ApiKeyEnv = Annotated[str, typer.Option("--api-key-env", help="Server: variable that holds the key.")]
ApiKeyFile = Annotated[str, typer.Option("--api-key-file", help="Server: file that holds the key.")]
DraftModel = Annotated[str, typer.Option("--draft-model", help="Server: the draft's weights, by folder or name.")]
Tp = Annotated[int, typer.Option("--tp", help="Tensor parallel size: 1, 2 or 4 ranks that share the model.")]
Port = Annotated[int, typer.Option("--port", help="Server: port of one that is started; 0 finds a free one.")]
MaxModelLen = Annotated[int, typer.Option("--max-model-len", help="Server: longest context; 0 leaves its own.")]
MemoryShare = Annotated[float, typer.Option("--memory-share", help="Server: share of the GPU's memory.")]
GraphSizes = Annotated[str, typer.Option("--graph-sizes", metavar="N,...", help="Server: batch sizes to capture.")]
Program = Annotated[str, typer.Option("--server-program", help="Server: command in place of the engine's own.")]
ServerArg = Annotated[list[str] | None, typer.Option("--server-arg", help="Server: argument passed on as it is; repeat.")]  # fmt: skip # noqa: E501
ServerEnv = Annotated[list[str] | None, typer.Option("--server-env", metavar="NAME=VALUE", help="Server: variable set for it; repeat.")]  # fmt: skip # noqa: E501
StartTimeout = Annotated[float | None, typer.Option("--start-timeout", help="Server: seconds until it must be ready.  [default: 1800, or 30 with --base-url]")]  # fmt: skip # noqa: E501
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Server: let it run code of the checkpoint.")]

Smoke = Annotated[bool, typer.Option("--smoke/--no-smoke", help="Server: end where the first answers are too wrong.")]


def make_spec(
    *, engine: str, base_url: str, graph_sizes: str, server_arg: Sequence[str] | None,
    server_env: Sequence[str] | None, draft: str, draft_model: str, program: str, **words: object,
) -> ServerSpec | None:  # fmt: skip
    """The spec that the options ask for; None for the built-in engine, with which only --tp goes."""
    if engine == BUILT_IN and not base_url:
        plain = ServerSpec(base_url="http://localhost")
        changed = [n for n, v in words.items() if n != "tp" and v != getattr(plain, n)]
        given = [*changed, *(n for n, v in (("server_arg", server_arg), ("draft_model", draft_model)) if v)]
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise EvalkitError(f"{option} is for a server, and the built-in engine is asked for",
                               f"add --engine or --base-url, or leave {option} away")  # fmt: skip
        return None
    sizes = tuple(_size(part) for part in graph_sizes.split(",") if part.strip())
    if not draft_model and not base_url and Path(draft).is_dir():
        draft_model = draft
    return ServerSpec(
        engine="openai" if engine == BUILT_IN else engine, base_url=base_url, graph_sizes=sizes, program=program,
        args=tuple(server_arg or ()), env=tuple(server_env or ()), draft_model=draft_model, **words,  # type: ignore[arg-type]
    )  # fmt: skip


def _size(word: str) -> int:
    if not word.strip().isdecimal() or not int(word):
        raise EvalkitError(f"--graph-sizes has {word!r}, expected whole numbers", "give --graph-sizes 1,2,4,8")
    return int(word)
