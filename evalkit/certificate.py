"""A certificate: a pass, bound to the configuration that got it, the runs and standards it rests on, and an expiry.

A performance run asks for one (`require_certificate`) and does not start without: numbers of speed are worth nothing
for a configuration whose answers were not shown to hold. Any change of K, quant mode, draft, target, image, engine or
flags makes another configuration (see `evalkit.fingerprint`), and so does not match.

The file carries the sha256 of its own canonical JSON, which shows an edit that was not meant to deceive. Who could
compute that hash again is kept out by a key: then the file carries an HMAC as well (RFC 2104, SHA-256).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from evalkit.baseline import GOLDEN_DIR
from evalkit.errors import EvalkitError
from evalkit.files import write_text
from evalkit.fingerprint import Fingerprint, config_fingerprint, make
from evalkit.outputs.document import verdict_json
from evalkit.records import Outcome, Run, Verdict
from evalkit.runfile import RUN_FILE, SAMPLES_FILE, read_json
from evalkit.sessions import uncounted

CERTIFICATE_SCHEMA = 1
DAYS = 14  # images, drivers and data sets move on; two weeks is one round of a recipe
MAX_DAYS = 365
CLOCKS = timedelta(minutes=5)  # two machines' clocks may be apart by this much
KEY_BYTES = 16  # a shorter key can be guessed
SEALS = ("sha256", "hmac_sha256")
WORDS = {"k": "K", "quant": "quant mode", "draft_method": "draft method", "draft_sha": "draft (sha256 of its files)",
         "online_quant_config": "online_quant_config (weights quantised after loading)",
         "target_sha": "target (sha256 of its files)"}  # fmt: skip
FRESH = "run it again with --fresh"
AGAIN = "evalkit certificate make RUN makes one from a run that passes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file, or a run's folder, by role (run, baseline, golden, evidence, references), name and sha256."""

    role: str
    name: str
    sha256: str

    def __post_init__(self) -> None:
        if not all(isinstance(x, str) and x for x in (self.role, self.name, self.sha256)):
            raise ValueError(f"a file it rests on has role {self.role!r}, name {self.name!r}, expected text")
        if Path(self.name).name != self.name:
            raise ValueError(f"a file it rests on is called {self.name!r}, expected a name without a folder")

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate as read. `body` is all of it but its seals; times are UTC."""

    body: Mapping[str, Any]
    configuration: Fingerprint
    runs: tuple[Stored, ...]
    standards: tuple[Stored, ...]
    issued: datetime
    expires: datetime
    sha256: str
    hmac_sha256: str


def hash_stored(path: Path) -> str:
    """sha256 of a file; of a run's folder that of its head and samples. Raises EvalkitError where it can't be read."""
    files = [path / RUN_FILE, path / SAMPLES_FILE] if path.is_dir() else [path]
    digest = hashlib.sha256()
    try:
        for file in files:
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    except OSError as e:
        raise EvalkitError(f"{e.filename} cannot be read ({e.strerror})", "restore the file") from None
    return digest.hexdigest()


def make_certificate(
    verdict: Verdict,
    run: Run,
    folder: Path,
    *,
    standards: Sequence[tuple[str, Path]],
    now: datetime,
    days: int = DAYS,
    key: bytes | None = None,
    ends: datetime | None = None,
) -> dict[str, Any]:
    """The certificate of a pass, as JSON values. `standards` are (role, path) of what the run was judged against. It
    expires after `days`, or when what it was judged by does (`ends`: a waiver's end).

    Raises EvalkitError for any other verdict, and where the run does not record a part of its configuration: what is
    not known can't be compared later.
    """
    refuse(verdict, run)
    if not 0 < days <= MAX_DAYS:
        raise EvalkitError(f"an expiry of {days} days", f"give 1 to {MAX_DAYS}")
    configuration = config_fingerprint(run)
    if unknown := [name for name, value in configuration.fields.items() if value is None]:
        raise EvalkitError(f"run {run.id} does not record {', '.join(unknown)}", "make the run again with this version")
    issued = now.astimezone(UTC).replace(microsecond=0)
    expires = issued + timedelta(days=days)
    if ends is not None and issued < ends < expires:
        expires = ends
    body = {
        "kind": "evalkit.certificate",
        "schema": CERTIFICATE_SCHEMA,
        "evalkit": metadata.version("evalkit"),
        "issued": issued.isoformat(),
        "expires": expires.isoformat(),
        "configuration": configuration.fields,
        "fingerprint": configuration.hash,
        "verdict": verdict_json(verdict, run),
        "runs": [asdict(Stored(role="run", name=run.id, sha256=hash_stored(folder)))],
        "standards": [asdict(Stored(role=r, name=p.name, sha256=hash_stored(p))) for r, p in standards],
    }
    text = canonical(body)
    seals = {"sha256": hashlib.sha256(text).hexdigest()}
    if key is not None:
        seals["hmac_sha256"] = sign(text, key)
    return body | seals


def refuse(verdict: Verdict, run: Run) -> None:
    """Raises EvalkitError for a verdict that is no pass, or not on this run."""
    broken = [c.name for c in verdict.checks if c.outcome is not Outcome.PASS]
    if verdict.outcome is not Outcome.PASS or broken or not verdict.checks:
        by = f" by {', '.join(broken)}" if broken else ""
        raise EvalkitError(f"no certificate: the verdict on {verdict.run_id} is {verdict.outcome.value}{by}",
                           "only a pass gets one; evalkit gate RUN says what would tell")  # fmt: skip
    if lost := uncounted(run):
        raise EvalkitError(f"no certificate: counters of {lost} of {len(run.samples)} answers of {run.id} are lost (a "
                           "session was killed), and what served those is not known", FRESH)  # fmt: skip
    if verdict.run_id != run.id:
        raise EvalkitError(f"the verdict is on {verdict.run_id}, the run is {run.id}", "judge this run")


def canonical(body: Mapping[str, Any]) -> bytes:
    """The one text of a JSON value that its hash is of: sorted keys, no blanks, ASCII."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def sign(text: bytes, key: bytes) -> str:
    """HMAC-SHA-256. Raises EvalkitError for a key that could be guessed."""
    if len(key) < KEY_BYTES:
        raise EvalkitError(f"the key has {len(key)} bytes", f"give one of at least {KEY_BYTES} random bytes")
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def write_certificate(values: Mapping[str, Any], path: Path) -> Path:
    """Writes a certificate, whole or not at all."""
    return write_text(path, json.dumps(values, indent=1, allow_nan=False) + "\n")


def read_certificate(path: Path) -> Certificate:
    """A certificate's file. Raises EvalkitError where it is none; whether it is valid is for `faults` to say."""
    try:
        values = read_json(path.read_text(encoding="utf-8"))
        if values["kind"] != "evalkit.certificate" or values["schema"] != CERTIFICATE_SCHEMA:
            raise ValueError(f"it is {values['kind']} of schema {values['schema']}")
        if not isinstance(values["configuration"], dict) or not values["configuration"]:
            raise ValueError("it has no configuration")
        times = [datetime.fromisoformat(values[name]) for name in ("issued", "expires")]
        if any(t.tzinfo is None for t in times):
            raise ValueError("a time without its zone")
        return Certificate(
            body={name: value for name, value in values.items() if name not in SEALS},
            configuration=make(values["configuration"]),
            runs=tuple(Stored(**row) for row in values["runs"]),
            standards=tuple(Stored(**row) for row in values["standards"]),
            issued=times[0], expires=times[1], sha256=str(values["sha256"]), hmac_sha256=values.get("hmac_sha256", ""),
        )  # fmt: skip
    except FileNotFoundError:
        raise EvalkitError(f"there is no certificate {path}", AGAIN) from None
    except OSError as e:
        raise EvalkitError(f"{path} cannot be read ({e.strerror})", AGAIN) from None
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise EvalkitError(f"{path} is no certificate ({type(e).__name__}: {e})", AGAIN) from None


def faults(
    cert: Certificate,
    *,
    now: datetime,
    fingerprint: Fingerprint | None = None,
    places: Sequence[Path] = (),
    named: Mapping[str, Path] | None = None,
    key: bytes | None = None,
    margins: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Everything that makes a certificate invalid, one sentence each; nothing where it holds.

    `margins` are the largest that are accepted, by the name of their check and in its own unit (fractions of 1; tokens
    a step for the distribution). A check that the certificate doesn't have, or that has no margin, is a fault.

    `fingerprint` is the configuration that is to be run. The runs and standards are looked for by name in `places`;
    `named` gives a role's own place. One that is not found is a fault: what can't be looked at isn't unchanged.
    """
    found = [*_seals(cert, key), *_verdict(cert), *_times(cert, now), *_margins(cert, margins or {})]
    if fingerprint is not None:
        for d in cert.configuration.differences(fingerprint):
            found.append(f"{WORDS.get(d.name, d.name)} is {d.words(d.there)}, the certificate is for {d.words(d.here)}")
    for stored in (*cert.runs, *cert.standards):
        own = (named or {}).get(stored.role)
        path = own or next((p / stored.name for p in places if (p / stored.name).exists()), None)
        try:
            if path is None or not path.exists():
                found.append(f"{stored} is missing")
            elif hash_stored(path) != stored.sha256:
                found.append(f"{stored} has changed since")
        except EvalkitError as e:
            found.append(f"{stored} is not whole: {e.what}")
    return tuple(found)


def _seals(cert: Certificate, key: bytes | None) -> list[str]:
    text = canonical(cert.body)
    found = []
    if not hmac.compare_digest(hashlib.sha256(text).hexdigest(), cert.sha256):
        found.append("the file was edited: its content is not what its sha256 is of")
    if cert.configuration.hash != cert.body.get("fingerprint"):
        found.append("its fingerprint is not that of its configuration")
    if key is None and cert.hmac_sha256:
        raise EvalkitError("the certificate is signed with a key", "give it with --key-file or --key-env")
    if key is not None and not cert.hmac_sha256:
        found.append("it is not signed, and a key was given")
    elif key is not None and not hmac.compare_digest(sign(text, key), str(cert.hmac_sha256)):
        found.append("it was not signed with this key, or edited after it was")
    return found


def _verdict(cert: Certificate) -> list[str]:
    verdict = cert.body.get("verdict")
    if not isinstance(verdict, dict) or not isinstance(verdict.get("checks"), list) or not verdict["checks"]:
        return ["it holds no verdict"]
    if not all(isinstance(c, dict) and isinstance(c.get("name"), str) for c in verdict["checks"]):
        return ["it holds a check that is none"]
    said = [verdict.get("outcome"), *(c.get("outcome") for c in verdict["checks"])]
    found = [] if all(o == Outcome.PASS.value for o in said) else ["its verdict is no pass"]
    if [r.name for r in cert.runs] != [verdict.get("run_id")]:
        found.append("its verdict is on another run than it names")
    roles = {s.role for s in cert.standards}
    for name, role in (("accuracy", "baseline"), ("accepted length", "golden")):
        if role not in roles and any(c["name"] == name and _compared(c) for c in verdict["checks"]):
            found.append(f"it was judged by {name} and names no {role}")
    return found


def _compared(check: Mapping[str, Any]) -> bool:
    numbers = check.get("numbers")
    return isinstance(numbers, dict) and bool(numbers.get("compared"))


def _margins(cert: Certificate, largest: Mapping[str, float]) -> list[str]:
    """What was certified at a wider margin than may be, or not compared at all."""
    for name, limit in largest.items():
        if isinstance(limit, bool) or not 0 < limit < math.inf:
            raise EvalkitError(f"the largest margin of {name} is {limit}", "give a number above 0: 0.01 is one point")
    verdict = cert.body.get("verdict")
    rows = verdict.get("checks") if isinstance(verdict, dict) else None
    checks = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    found = []
    for name, limit in largest.items():
        told = [_margin_of(c) for c in checks if c.get("name") == name]
        wide = [m for m in told if m is not None and m > limit * (1 + 1e-9)]
        if not told or None in told:
            found.append(f"it was not judged by {name} at a margin, and at most {limit:g} is asked for")
        elif wide:
            found.append(f"it was judged by {name} at a margin of {max(wide):g}, at most {limit:g} is asked for")
    return found


def _margin_of(check: Mapping[str, Any]) -> float | None:
    numbers = check.get("numbers")
    margin = numbers.get("margin") if isinstance(numbers, dict) else None
    return float(margin) if isinstance(margin, int | float) and not isinstance(margin, bool) else None


def _times(cert: Certificate, now: datetime) -> list[str]:
    if now.tzinfo is None:
        raise ValueError("a time without its zone")
    if cert.issued > now + CLOCKS:
        return [f"it was issued in the future ({cert.issued.isoformat()}); look at both clocks"]
    if cert.expires - cert.issued > timedelta(days=MAX_DAYS):
        return [f"it expires after more than {MAX_DAYS} days ({cert.expires.isoformat()})"]
    return [f"it expired at {cert.expires.isoformat()}"] if now >= cert.expires else []


def require_certificate(
    path: Path,
    fingerprint: Fingerprint,
    now: datetime,
    *,
    places: Sequence[Path] = (Path("runs"), GOLDEN_DIR),
    named: Mapping[str, Path] | None = None,
    key: bytes | None = None,
    margins: Mapping[str, float] | None = None,
) -> Certificate:
    """The valid certificate of exactly this configuration. Raises EvalkitError with all its faults; a performance run
    calls it before it starts anything. `places`, `named` and `margins` are those of `faults`."""
    cert = read_certificate(path)
    found = faults(cert, now=now, fingerprint=fingerprint, places=places, named=named, key=key, margins=margins)
    if found:
        raise EvalkitError(f"{path.name} does not allow this run: {'; '.join(found)}", AGAIN)
    return cert
