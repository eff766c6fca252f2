"""`evalkit serve`: the engine over HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from evalkit.commands import options as opt
from evalkit.waiting import wait_briefly


def serve(
    k: opt.K = None,
    quant: opt.Quant = "float32",
    draft: opt.Draft = "dspark",
    model: opt.Model = "gradeschool-m3",
    host: Annotated[str, typer.Option(help="Address to listen on; anything but loopback is warned of.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the key to ask for.")] = None,
    name: Annotated[
        str | None, typer.Option("--served-model-name", help="What requests call it.  [default: target]")
    ] = None,
    chat_template: Annotated[str | None, typer.Option(help="Jinja file, or plain.  [default: the model's]")] = None,
    seed: Annotated[int, typer.Option(help="Mixed into the seed of each request.")] = 0,
    draft_width: opt.Width = "k",
    batch: opt.Batch = None,
    threads: opt.Threads = 0,
    device: opt.Device = "auto",
    prefix_cache: opt.PrefixCache = True,
    max_queue: Annotated[int, typer.Option(help="Prompts that may wait or run; more get 503.")] = 1024,
    max_body_mb: Annotated[int, typer.Option(help="Largest body; a larger one gets 413.")] = 4,
    drain_seconds: Annotated[int, typer.Option(help="How long what runs may finish at the end.")] = 30,
) -> None:
    """Serve the engine over HTTP as OpenAI does, with acceptance counters."""
    from evalkit.config import Cell
    from evalkit.serve.settings import MB, ServeSettings, check_template, key_from

    cell = Cell.make(
        model=model, draft=draft, k=k, quant=quant, draft_width=draft_width, batch=batch, threads=threads,
        device=device, prefix_cache=prefix_cache, seed=seed,
    )  # fmt: skip
    settings = ServeSettings(
        name=cell.target if name is None else name, host=host, port=port, api_key=key_from(api_key_env),
        max_queue=max_queue, max_body=max_body_mb * MB, drain_seconds=drain_seconds,
        chat_template=check_template(chat_template),
    )  # fmt: skip
    wait_briefly(os.environ)
    from evalkit.serve import server

    server.run(cell, settings)
