"""Only the same setting continues a run: every field of a cell is compared, but for those that are named as free."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engine.config import EngineConfig
from evalkit.config import Cell
from evalkit.continuing import FREE, FREE_OF_SERVER, differs
from evalkit.servers.spec import ServerSpec

MADE = {"code": "c", "image": "", "versions": {"torch": "2", "triton": "3"}}
SERVED = Cell.make(model="org/t", draft="eagle3", server=ServerSpec(engine="vllm", extra_body='{"a": 1}')).to_json()
OWN = Cell.make().to_json()


def head(cell: dict[str, Any], **made: Any) -> dict[str, Any]:
    return {"cell": cell, "fingerprint": {"hash": "h"}, "provenance": {**MADE, **made}}


def test_the_same_setting_is_continued() -> None:
    assert differs(head(OWN), head(dict(OWN))) == differs(head(SERVED), head(dict(SERVED))) == ""


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_fact_of_a_cell_is_compared(name: str) -> None:
    why = differs(head(OWN), head({**OWN, name: "another"}))
    assert (why == "") is (name in FREE) and (not why or f"{name} " in why)


@pytest.mark.parametrize("name", sorted(SERVED["server"]))
def test_every_fact_of_a_server_is_compared(name: str) -> None:
    other = {**SERVED, "server": {**SERVED["server"], name: "another"}}
    why = differs(head(SERVED), head(other))
    assert (why == "") is (name in FREE_OF_SERVER) and (not why or f"{name} " in why)


@pytest.mark.parametrize("name", ["model", "draft_path"])
def test_a_server_s_target_has_no_hash_and_is_compared_by_name(name: str) -> None:
    assert differs(head(SERVED), head({**SERVED, name: "another"}))


def test_free_names_are_names_of_settings() -> None:
    assert set(FREE) <= {f.name for f in dataclasses.fields(EngineConfig)}
    assert set(FREE_OF_SERVER) <= {f.name for f in dataclasses.fields(ServerSpec)}


def test_what_is_said_names_both_values_and_one_spelling_is_no_difference() -> None:
    why = differs(head(OWN), head({**OWN, "mono": "require", "max_batch": 2}))
    assert why.startswith("its setting is another one (") and 'mono "off" / "require"' in why and "64 / 2" in why
    assert not differs(head({**OWN, "online_quant_config": "{}"}), head(OWN))
    assert "server" in differs(head(OWN), head(SERVED))


def test_a_setting_that_was_not_there_yet_had_its_default() -> None:
    before = {name: value for name, value in OWN.items() if name not in ("mono", "prefill_delayer")}
    assert not differs(head(before), head(OWN)) and "mono" in differs(head(before), head({**OWN, "mono": "auto"}))


@pytest.mark.parametrize(("made", "said"), [
    ({"code": "d"}, "the engine's code has changed since"), ({"image": "i:2"}, "image"),
    ({"versions": {"torch": "3", "triton": "3"}}, 'torch "2" / "3"'),
])  # fmt: skip
def test_what_runs_it_must_be_the_same(made: dict[str, Any], said: str) -> None:
    assert said in differs(head(OWN), head(OWN, **made))


def test_a_server_of_another_version_does_not_continue() -> None:
    one, two = ({"server": {"version": v}} for v in ("0.11", "0.12"))
    assert "server version" in differs(head(SERVED, **one), head(SERVED, **two))
    assert not differs(head(SERVED, **one), head(SERVED))  # one that does not tell it
    assert not differs(head(SERVED, versions={}), head(SERVED))  # this machine's packages serve nothing
