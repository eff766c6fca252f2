"""`evalkit certificate make | check | show`. check exits 0 valid, 1 invalid, 2 error."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalkit import layout
from evalkit.commands import PLAIN
from evalkit.commands import options as opt
from evalkit.commands.certify import by_default, by_spec, certify
from evalkit.commands.common import exit_code, specification
from evalkit.errors import EvalkitError

if TYPE_CHECKING:
    from evalkit.certificate import Certificate
    from evalkit.fingerprint import Fingerprint

app = typer.Typer(help="Certificates: a pass, bound to its configuration.", **PLAIN)
FILE = "certificate.json"
WITH_MARGIN = ("accuracy", "accepted length", "accepted drafts distribution", "accept rate by position")

CertificateFile = Annotated[Path, typer.Argument(help="A certificate's file.", metavar="CERTIFICATE")]
KeyFile = Annotated[Path | None, typer.Option("--key-file", help="File with the key that signs.", metavar="FILE")]
KeyEnv = Annotated[str | None, typer.Option("--key-env", help="Variable with the key that signs.", metavar="NAME")]


def clock() -> datetime:
    """The time now; tests put another in its place."""
    return datetime.now(UTC)


@app.command("make", short_help="Judge stored runs and certify each that passes.")
def make(
    which: opt.RunsOrSpec,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file.  [default: in the run]")] = None,
    days: Annotated[int, typer.Option(help="Days until it expires.")] = 14,
    baseline: opt.BaselineOpt = None,
    golden: opt.GoldenOpt = None,
    margin: opt.Margin = None,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    runs_dir: opt.RunsDir = Path("runs"),
) -> None:
    """Judge stored runs (several as one sweep), or by a specification, and certify each that passes. Exits as evalkit
    gate does."""
    from evalkit.records import Outcome
    from evalkit.sessions import uncounted

    key = _key(key_file, key_env)
    if spec := specification(which, baseline=baseline, golden=golden, margin=margin):
        judged, outcome = by_spec(spec, runs_dir)
    else:
        judged, outcome = by_default(which, runs_dir, baseline, golden, margin)
    if output and len(judged) > 1:
        raise EvalkitError(f"--output for {len(judged)} certificates", "leave it away: each goes into its run's folder")
    for one in judged:
        certify(one, output or one.folder / FILE, now=clock(), days=days, key=key)
    if outcome is Outcome.PASS and any(uncounted(one.run) for one in judged):
        outcome = Outcome.INCONCLUSIVE
    raise typer.Exit(exit_code(outcome))


@app.command("check", short_help="Say whether a certificate allows a setting.")
def check(
    file: CertificateFile,
    against: Annotated[str | None, typer.Option("--against", help="The run to compare with.", metavar="RUN")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Or a setting: draft tokens a step ...")] = None,
    quant: Annotated[str, typer.Option(help="... format of the KV cache ...")] = "float32",
    online_quant_config: opt.OnlineQuant = "",
    draft: Annotated[str, typer.Option("--draft", help="... its draft ...")] = "dspark",
    model: Annotated[str, typer.Option("--model", "--target", help="... its target ...")] = "gradeschool-m3",
    draft_width: Annotated[str, typer.Option("--draft-width", help="... its draft width ...")] = "k",
    device: Annotated[str, typer.Option(help="... and its device: cpu, cuda, or auto, as here.")] = "auto",
    batch: Annotated[int | None, typer.Option(help="Sequences decoded together.  [default: 64]")] = None,
    tp: Annotated[int, typer.Option("--tp", help="Ranks that share the target.")] = 1,
    prefix_cache: Annotated[bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse prompts' KV.")] = True,
    image: Annotated[str, typer.Option(help="Image that it is served from.")] = "",
    flag: Annotated[list[str] | None, typer.Option("--flag", help="A server's flag.", metavar="NAME=VALUE")] = None,
    baseline: opt.BaselineOpt = None,
    golden: opt.GoldenOpt = None,
    spec: Annotated[Path | None, typer.Option("--spec", help="The specification, where it's not beside.")] = None,
    max_margin: Annotated[
        list[str] | None,
        typer.Option("--max-margin", help="Largest margin of a check: accuracy=0.01; repeat.", metavar="CHECK=X"),
    ] = None,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    runs_dir: opt.RunsDir = Path("runs"),
) -> None:
    """Say whether a certificate allows a configuration, and every field that differs. Exits 0 valid, 1 invalid."""
    from evalkit import certificate
    from evalkit.baseline import GOLDEN_DIR
    from evalkit.fingerprint import config_fingerprint
    from evalkit.judging import find_standard
    from evalkit.store import find_run, load_run

    largest = _largest(max_margin or ())
    if (against is None) == (k is None):
        found = "neither --against nor --k" if k is None else "both --against and --k"
        raise EvalkitError(
            f"{found} is given", "give a run with --against, or a setting with --k, --quant, --draft ..."
        )
    if against is not None:
        here = config_fingerprint(load_run(find_run(against, runs_dir)))
    else:
        here = _of_setting(
            dict(k=k, quant=quant, draft=draft, model=model, draft_width=draft_width, device=device, batch=batch,
                 tp=tp, prefix_cache=prefix_cache, online_quant_config=online_quant_config), image, flag or ()
        )  # fmt: skip
    cert = certificate.read_certificate(file)
    given = {"baseline": find_standard(baseline, runs_dir, "baseline"), "specification": spec,
             "golden": find_standard(golden, runs_dir, "golden")}  # fmt: skip
    named = {role: path for role, path in given.items() if path}
    found = certificate.faults(
        cert, now=clock(), fingerprint=here, places=(runs_dir, GOLDEN_DIR, file.parent.parent, Path()), named=named,
        key=_key(key_file, key_env), margins=largest,
    )  # fmt: skip
    if not found:
        layout.say(f"valid: {file.name} allows this configuration until {cert.expires.isoformat()}")
        layout.say(f"judged at: {margins(cert.body['verdict']['checks'])}")
        for note in warnings(cert.body["verdict"]):
            layout.say(note)
        return
    print(f"invalid: {file.name}")
    for said in found:
        layout.say(f"  {said}")
    raise typer.Exit(1)


@app.command("show")
def show(file: CertificateFile) -> None:
    """Show what a certificate says; whether it holds is for check to say."""
    from evalkit.certificate import AGAIN, read_certificate

    cert = read_certificate(file)
    try:
        words = text(cert, layout.window())
    except (KeyError, TypeError, AttributeError):
        raise EvalkitError(f"{file} holds no verdict that can be shown", AGAIN) from None
    print(words)


def text(cert: Certificate, width: int = 0) -> str:
    """A certificate for people, line by line; folded to `width` columns, 0 is not."""
    from evalkit.fingerprint import shown

    verdict = cert.body["verdict"]
    lines = [f"verdict    {verdict['outcome']} on {verdict['run_id']}",
             f"issued     {cert.issued.isoformat()} by evalkit {cert.body['evalkit']}",
             f"expires    {cert.expires.isoformat()}",
             f"signed     {'with a key' if cert.hmac_sha256 else 'no'}",
             "configuration"]  # fmt: skip
    lines.append(layout.pairs([(name, shown(value)) for name, value in cert.configuration.fields.items()], width))
    held = [(s.role, f"{s.name} ({s.sha256[:12]})") for s in (*cert.runs, *cert.standards)]
    lines += ["rests on", layout.pairs(held, width), "checks"]
    lines += [f"  {c['name']}: {c['message']}" for c in verdict["checks"]]
    lines += [f"  {note}" for note in warnings(verdict)]
    return layout.fold_lines("\n".join(lines), width)


def margins(checks: Sequence[Mapping[str, Any]]) -> str:
    """The margins that the certified verdict was given at, so that a wide one is seen."""
    told = [f"{c['name']} margin {c['numbers']['margin']:g}" for c in checks if "margin" in c.get("numbers", {})]
    return ", ".join(told) or "no margin: nothing was compared with a standard"


def warnings(verdict: Mapping[str, Any]) -> list[str]:
    """What the gate warned of though it passed: an accepted length too far above golden, say."""
    from evalkit.gate.length import WARNING

    return [note for note in verdict.get("notes", ()) if isinstance(note, str) and note.startswith(WARNING)]


def _largest(words: Sequence[str]) -> dict[str, float]:
    """`accuracy=0.01` by the check's name. A name that no check has would only ever be a fault."""
    out: dict[str, float] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not equals or name.strip() not in WITH_MARGIN or not 0 < value < math.inf:
            known = ", ".join(WITH_MARGIN)
            raise EvalkitError(f"--max-margin {word!r}, expected CHECK=NUMBER above 0, with one of {known}",
                               "give --max-margin accuracy=0.01 (one point)")  # fmt: skip
        out[name.strip()] = value
    return out


def _of_setting(words: dict[str, Any], image: str, flags: Sequence[str]) -> Fingerprint:
    """The configuration of a setting that is not run: what `evalkit run` with these options would record."""
    from engine.config import QuantMode
    from evalkit import provenance
    from evalkit.config import Cell
    from evalkit.fingerprint import EXTRA, config_fingerprint, extra_facts

    cell = Cell.make(**words)
    engine = cell.engine
    device = _device(engine.device)
    if bad := [word for word in flags if "=" not in word]:
        raise EvalkitError(f"--flag {bad[0]!r}, expected NAME=VALUE", "give --flag NAME=VALUE")
    given = dict(word.split("=", 1) for word in flags)
    given |= extra_facts({"server": {EXTRA: given.get(EXTRA)}})  # in the one form that runs store
    dtype = engine.dtype if engine.dtype != "auto" else "float32" if device == "cpu" else "bf16"
    settings = {"device": device, "dtype": QuantMode.parse(engine.quant, dtype).dtype}
    told = provenance.fingerprint(cell, settings=settings, task={}, doc_ids=())
    where = {
        "image": image,
        "flags": given,
        "code": provenance.code_hash(),
        "versions": provenance.versions(),
    }
    return config_fingerprint({"cell": cell.to_json(), "fingerprint": told, "provenance": where})


def _device(word: str) -> str:
    """The device that the engine would take here. Only "auto" asks torch."""
    if word != "auto":
        return word
    from engine.loading import device_of
    from engine.parallel import Parallel

    return device_of(word, Parallel()).type


def _key(file: Path | None, name: str | None) -> bytes | None:
    """The key, from a file or a variable that the command line names; None where it names none."""
    if file is not None and name is not None:
        raise EvalkitError("both --key-file and --key-env are given", "give one of them")
    if file is not None:
        try:
            return file.read_bytes().strip()
        except OSError as e:
            raise EvalkitError(f"the key {file} cannot be read ({e.strerror})", "give a readable file") from None
    if name is None:
        return None
    if not os.environ.get(name):
        raise EvalkitError(f"the variable {name} holds no key", "set it, or name another with --key-env")
    return os.environ[name].strip().encode()
