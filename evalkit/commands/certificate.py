"""`evalkit certificate make | check | show`. check exits 0 valid, 1 invalid, 2 error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalkit.commands import PLAIN
from evalkit.errors import EvalkitError

if TYPE_CHECKING:
    from evalkit.certificate import Certificate
    from evalkit.fingerprint import Fingerprint
    from evalkit.records import Run

app = typer.Typer(help="Certificates: a pass, bound to its configuration.", **PLAIN)
FILE = "certificate.json"

CertificateFile = Annotated[Path, typer.Argument(help="A certificate's file.", metavar="CERTIFICATE")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of the stored runs.")]
BaselineOpt = Annotated[Path | None, typer.Option("--baseline", help="Baseline file or K=0 run.  [default: golden/]")]
GoldenOpt = Annotated[Path | None, typer.Option("--golden", help="Golden curve.  [default: golden/]")]
KeyFile = Annotated[Path | None, typer.Option("--key-file", help="File with the key that signs.", metavar="FILE")]
KeyEnv = Annotated[str | None, typer.Option("--key-env", help="Variable with the key that signs.", metavar="NAME")]


def clock() -> datetime:
    """The time now; tests put another in its place."""
    return datetime.now(UTC)


@app.command("make")
def make(
    which: Annotated[list[str], typer.Argument(help="Runs: folders, or ids.", metavar="RUN...")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file.  [default: in the run]")] = None,
    days: Annotated[int, typer.Option(help="Days until it expires.")] = 14,
    baseline: BaselineOpt = None,
    golden: GoldenOpt = None,
    margin: Annotated[float | None, typer.Option(help="Loss of accuracy that is accepted.  [default: 0.01]")] = None,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Judge stored runs, several as one sweep, and certify each that passes. Exits as evalkit gate does."""
    from evalkit import certificate, sweep
    from evalkit.judging import judge_run
    from evalkit.records import EXIT_CODE, Outcome
    from evalkit.store import find_run, load_run

    if output and len(which) > 1:
        raise EvalkitError(f"--output for {len(which)} certificates", "leave it away: each goes into its run's folder")
    key, folders = _key(key_file, key_env), [find_run(word, runs_dir) for word in which]
    runs = [load_run(folder) for folder in folders]
    verdicts = [judge_run(run, baseline=baseline, golden=golden, margin=margin).verdict for run in runs]
    verdicts = sweep.adjust(verdicts) if len(verdicts) > 1 else verdicts
    for verdict, run, folder in zip(verdicts, runs, folders, strict=True):
        path = output or folder / FILE
        if verdict.outcome is not Outcome.PASS:
            path.unlink(missing_ok=True)  # of an earlier verdict
            telling = ", ".join(c.name for c in verdict.checks if c.outcome is verdict.outcome)
            print(f"no certificate: {run.id} is {verdict.outcome.value}" + (f" by {telling}" if telling else ""))
            continue
        values = certificate.make_certificate(
            verdict, run, folder, standards=_standards(run, baseline, golden), now=clock(), days=days, key=key
        )
        certificate.write_certificate(values, path)
        print(f"certificate: {path}, until {values['expires']}")
    raise typer.Exit(EXIT_CODE[sweep.combined(verdicts)])


@app.command("check")
def check(
    file: CertificateFile,
    against: Annotated[str | None, typer.Option("--against", help="The run to compare with.", metavar="RUN")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Or a setting: draft tokens a step ...")] = None,
    quant: Annotated[str, typer.Option(help="... format of the KV cache ...")] = "float32",
    draft: Annotated[str, typer.Option("--draft", help="... its draft ...")] = "dspark",
    model: Annotated[str, typer.Option("--model", "--target", help="... its target ...")] = "gradeschool-m3",
    draft_width: Annotated[str, typer.Option("--draft-width", help="... its draft width ...")] = "k",
    device: Annotated[str, typer.Option(help="... and its device: cpu or cuda.")] = "auto",
    batch: Annotated[int | None, typer.Option(help="Sequences decoded together.  [default: 64]")] = None,
    prefix_cache: Annotated[bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse prompts' KV.")] = True,
    image: Annotated[str, typer.Option(help="Image that it is served from.")] = "",
    flag: Annotated[list[str] | None, typer.Option("--flag", help="A server's flag.", metavar="NAME=VALUE")] = None,
    baseline: BaselineOpt = None,
    golden: GoldenOpt = None,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Say whether a certificate allows a configuration, and every field that differs. Exits 0 valid, 1 invalid."""
    from evalkit import certificate
    from evalkit.baseline import GOLDEN_DIR
    from evalkit.fingerprint import config_fingerprint
    from evalkit.store import find_run, load_run

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
                 prefix_cache=prefix_cache), image, flag or ()
        )  # fmt: skip
    cert = certificate.read_certificate(file)
    named = {role: path for role, path in (("baseline", baseline), ("golden", golden)) if path}
    found = certificate.faults(
        cert, now=clock(), fingerprint=here, places=(runs_dir, GOLDEN_DIR, file.parent.parent), named=named,
        key=_key(key_file, key_env),
    )  # fmt: skip
    if not found:
        print(f"valid: {file.name} allows this configuration until {cert.expires.isoformat()}")
        print(f"judged at: {margins(cert.body['verdict']['checks'])}")
        return
    print(f"invalid: {file.name}")
    for said in found:
        print(f"  {said}")
    raise typer.Exit(1)


@app.command("show")
def show(file: CertificateFile) -> None:
    """Show what a certificate says; whether it holds is for check to say."""
    from evalkit.certificate import read_certificate

    print(text(read_certificate(file)))


def text(cert: Certificate) -> str:
    """A certificate for people, line by line."""
    from evalkit.fingerprint import shown

    verdict = cert.body["verdict"]
    lines = [f"verdict    {verdict['outcome']} on {verdict['run_id']}",
             f"issued     {cert.issued.isoformat()} by evalkit {cert.body['evalkit']}",
             f"expires    {cert.expires.isoformat()}",
             f"signed     {'with a key' if cert.hmac_sha256 else 'no'}",
             "configuration"]  # fmt: skip
    lines += [f"  {name:20} {shown(value)}" for name, value in cert.configuration.fields.items()]
    lines += ["rests on", *(f"  {s.role:10} {s.name} ({s.sha256[:12]})" for s in (*cert.runs, *cert.standards))]
    return "\n".join([*lines, "checks", *(f"  {c['name']}: {c['message']}" for c in verdict["checks"])])


def margins(checks: Sequence[Mapping[str, Any]]) -> str:
    """The margins that the certified verdict was given at, so that a wide one is seen."""
    told = [f"{c['name']} margin {c['numbers']['margin']:g}" for c in checks if "margin" in c.get("numbers", {})]
    return ", ".join(told) or "no margin: nothing was compared with a standard"


def _standards(run: Run, baseline: Path | None, golden: Path | None) -> list[tuple[str, Path]]:
    """The files that a run is judged against: named ones, else golden/'s, a curve with its evidence."""
    from evalkit import golden as goldens
    from evalkit.baseline import GOLDEN_DIR

    target, draft = str(run.cell.get("target")), str(run.cell.get("draft"))
    curve = golden or goldens.golden_path(target, draft)
    found = [
        ("baseline", baseline or goldens.baseline_path(target, str(run.cell.get("task")))),
        ("golden", curve),
        ("evidence", goldens.evidence_path(curve)),
        ("references", GOLDEN_DIR / "reference_scores.yaml"),
    ]
    return [(role, path) for role, path in found if path.exists()]


def _of_setting(words: dict[str, Any], image: str, flags: Sequence[str]) -> Fingerprint:
    """The configuration of a setting that is not run: what `evalkit run` with these options would record."""
    from engine.config import QuantMode
    from evalkit import provenance
    from evalkit.config import Cell
    from evalkit.fingerprint import config_fingerprint

    cell = Cell.make(**words)
    engine = cell.engine
    if engine.device == "auto":
        raise EvalkitError("--device auto is known only to a running engine", "give --device cpu or --device cuda")
    if bad := [word for word in flags if "=" not in word]:
        raise EvalkitError(f"--flag {bad[0]!r}, expected NAME=VALUE", "give --flag NAME=VALUE")
    dtype = engine.dtype if engine.dtype != "auto" else "float32" if engine.device == "cpu" else "bf16"
    settings = {"device": engine.device, "dtype": QuantMode.parse(engine.quant, dtype).dtype}
    told = provenance.fingerprint(cell, settings=settings, task={}, doc_ids=())
    where = {
        "image": image,
        "flags": dict(word.split("=", 1) for word in flags),
        "code": provenance.code_hash(),
        "versions": provenance.versions(),
    }
    return config_fingerprint({"cell": cell.to_json(), "fingerprint": told, "provenance": where})


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
