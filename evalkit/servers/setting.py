"""What a server tells of its own setting, held against the setting that a run says it has.

A run is judged by what it says: K, draft, quant mode. A server that was started otherwise gives answers of another
setting under that name, so a difference is an error before the first question, and in a stored run a failed check.
What a server does not tell is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.config import QuantMode
from engine.errors import EngineError
from evalkit.errors import EvalkitError
from evalkit.servers import told
from evalkit.servers.profile import Profile, profile_of
from evalkit.servers.spec import ENGINES

if TYPE_CHECKING:
    from evalkit.records import Run

OPTIONS = {"k": "--k", "draft": "--draft", "method": "--draft", "quant": "--quant", "kv": "--quant", "index": "--quant",
           "draft_width": "--draft-width"}  # fmt: skip
OWN_ENGINE = "openai"  # by which `evalkit serve` goes
DRAFTING = ("draft", "method", "draft_width", "verify")  # mean nothing where neither side drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """One word of the setting: what the server tells of it, and what the run says."""

    name: str
    told: str
    said: str


def told_setting(profile: Profile, flags: Mapping[str, str]) -> dict[str, str]:
    """Of a server's flags, those in this project's words: k, draft, method, quant, kv, index, draft_width,
    verify."""
    return dict(profile.setting(flags)) if profile.setting is not None else {}


def differences(profile: Profile, flags: Mapping[str, str], cell: Mapping[str, Any]) -> list[Odd]:
    """Where the server tells another setting than `cell` (a Cell as JSON) has."""
    told = told_setting(profile, flags)
    plain = told.get("k") == "0" and not cell.get("k")
    out = []
    for name, value in told.items():
        said = _said(name, cell)
        if said and not (plain and name in DRAFTING) and not _same(name, value, said):
            out.append(Odd(name=name, told=value, said=said))
    return out


def _said(name: str, cell: Mapping[str, Any]) -> str:
    if name in ("kv", "index"):
        value = str(_families(str(cell.get("quant", ""))).get(name, ""))
        return "" if value == "auto" else value  # the checkpoint's own, whatever that is
    if name == "method":
        return str((cell.get("server") or {}).get("method") or cell.get("draft", ""))
    return str(cell.get(name, ""))


def _same(name: str, told: str, said: str) -> bool:
    if name == "quant" and (families := _families(told)):
        return families == _families(said)
    return told == said


def _families(quant: str) -> Mapping[str, Any]:
    try:
        return QuantMode.parse(quant, "auto").families()
    except EngineError:
        return {}


def refuse_other(profile: Profile, flags: Mapping[str, str], cell: Mapping[str, Any], where: str) -> None:
    """Raises EvalkitError where the server tells another setting than the run's."""
    if not (odd := differences(profile, flags, cell)):
        return
    told = ", ".join(f"{o.name} {o.told}" for o in odd)
    said = ", ".join(f"{o.name} {o.said}" for o in odd)
    options = " ".join(dict.fromkeys(f"{OPTIONS[o.name]} {_word(o.told)}" for o in odd if o.name in OPTIONS))
    give = f"give {options}, or " if options else ""
    raise EvalkitError(f"the server at {where} tells {told}; this run says {said}",
                       f"{give}start the server with the run's setting")  # fmt: skip


def refuse_own(engine: str, pages: Mapping[str, Any], cell: Mapping[str, Any], where: str) -> None:
    """Raises EvalkitError where the server is evalkit's own and taken for another engine's: what it tells of its
    setting would not be read."""
    if engine == OWN_ENGINE or not (words := told.evalkit_words(pages)):
        return
    odd = [o for o in differences(profile_of(OWN_ENGINE), words, cell) if o.name in OPTIONS]
    options = " ".join(dict.fromkeys(f"{OPTIONS[o.name]} {_word(o.told)}" for o in odd))
    tells = ", ".join(f"{name} {words[name]}" for name in ("k", "draft", "quant") if name in words)
    raise EvalkitError(f"the server at {where} is evalkit's own ({tells}), and this run takes it for {engine}",
                       f"give --engine {OWN_ENGINE}{f' {options}' if options else ''}")  # fmt: skip


def _word(value: str) -> str:
    return f"'{value}'" if " " in value else value


def untold(profile: Profile, flags: Mapping[str, str], quant: str) -> list[str]:
    """A note where the server does not tell its quant mode."""
    if {"quant", "kv", "index"} & told_setting(profile, flags).keys():
        return []
    return [f"quant mode {quant} is what --quant says; the server does not tell its own"]


def stored_faults(run: Run) -> list[str]:
    """What a stored run holds against its own setting: the server's flags, and drafts at K=0. [] where nothing."""
    spec = run.cell.get("server")
    if not isinstance(spec, Mapping) or spec.get("engine") not in ENGINES:
        return []
    flags = {n: str(v) for n, v in dict(run.provenance.get("flags") or {}).items()}
    odd = differences(profile_of(str(spec["engine"])), flags, run.cell)
    served = run.provenance.get("served")
    pages = served.get("pages") if isinstance(served, Mapping) else None
    if spec["engine"] != OWN_ENGINE and isinstance(pages, Mapping):  # stored before that was refused
        odd += differences(profile_of(OWN_ENGINE), told.evalkit_words(pages), run.cell)
    out = [f"the server told {o.name} {o.told}, the run says {o.said}" for o in odd]
    return out + drafted_words(run)


def drafted_words(run: Run) -> list[str]:
    """The drafts that a server made at K=0, by its counters or its replies."""
    told = run.counters.get("drafted")
    if run.cell.get("k") != 0 or not isinstance(told, Mapping):
        return []
    out = []
    if told.get("drafts"):
        out.append(f"the server's counters moved by {told['drafts']:g} drafts, the run says k 0")
    if told.get("replies"):
        out.append(f"{told['replies']} replies tell of drafts, the run says k 0")
    return out
