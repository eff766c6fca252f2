"""A server of the tiny model in this process, and a client for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from engine import LLM
from evalkit.config import Cell
from evalkit.serve.app import make_app
from evalkit.serve.server import make_service
from evalkit.serve.service import Service
from evalkit.serve.settings import ServeSettings


def service_of(llm: LLM, folder: Path, **settings: Any) -> Service:
    """A Service around an engine that is loaded already."""
    cell = Cell(engine=replace(llm.config, model=folder), target="tiny", draft=llm.config.draft)
    asked: dict[str, Any] = {"name": "tiny", **settings}
    return make_service(cell, ServeSettings(**asked), llm)


@contextmanager
def serving(llm: LLM, folder: Path, **settings: Any) -> Iterator[tuple[TestClient, Service]]:
    service = service_of(llm, folder, **settings)
    with TestClient(make_app(service), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client, service


def events(text: str) -> list[Any]:
    """The data of a stream of server-sent events; "[DONE]" stays as it is."""
    found = []
    for part in text.strip().split("\n\n"):
        assert part.startswith("data: ") and "\n" not in part
        data = part.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def counters(page: str) -> dict[str, float]:
    """Sample name with labels -> value, read by the official parser."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        s.name + "".join(f"[{v}]" for n, v in sorted(s.labels.items()) if n not in ("model_name", "engine")): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }
