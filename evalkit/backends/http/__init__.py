"""Any engine that serves over HTTP, as a Backend: started here, or found at --base-url."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.api import Request
from engine.tokenizer import Tokenizer
from evalkit.backends import OnFinish, Score
from evalkit.backends.http.asking import ask, body
from evalkit.backends.http.client import Client
from evalkit.backends.http.errors import Trouble
from evalkit.backends.http.probe import NO_SPECIAL, TEXTS, Found, count_special, probe
from evalkit.backends.http.ready import not_ready
from evalkit.backends.http.secret import read_key
from evalkit.backends.http.session import Session
from evalkit.backends.http.watch import Source
from evalkit.checkpoint import checkpoint_hash
from evalkit.config import TARGETS, Cell
from evalkit.errors import EvalkitError
from evalkit.fingerprint import ASKED
from evalkit.servers import identity, setting, told
from evalkit.servers.counters import join
from evalkit.servers.launch import launch, served_name
from evalkit.servers.process import Process, wait_ready
from evalkit.servers.profile import Profile, asked_of, profile_of, refuse
from evalkit.servers.spec import ServerSpec

LOGS = Path("runs") / "servers"


def open_http(cell: Cell, *, logs: Path = LOGS) -> Http:
    """The server of a cell, ready and probed. What it can't do is refused before it is started."""
    spec = cell.server
    assert spec is not None
    profile = profile_of(spec.engine)
    method = spec.method if cell.k else "none"
    notes = refuse(cell, spec, profile, method) + identity.notes(cell)
    process = None
    if not spec.base_url:
        log = logs / f"{cell.stem('server')}.log"
        process, spec = launch(cell, spec, profile, log)
        notes.append(f"evalkit started the server; its output is in {log}")
    try:
        return Http(cell, spec, profile, process=process, notes=notes, drafts=method != "ngram")
    except BaseException:
        if process is not None:
            process.stop()
        raise


class Http:
    """A Backend over HTTP. Made, it has a server that is ready; `close` ends one that was started for it."""

    def __init__(
        self, cell: Cell, spec: ServerSpec, profile: Profile, *, process: Process | None = None,
        notes: Sequence[str] = (), drafts: bool = True,
    ) -> None:  # fmt: skip
        self._cell, self._spec, self._profile, self._process = cell, spec, profile, process
        self._key = read_key(spec)
        self.endpoint = spec.endpoint or profile.endpoint
        self._always_drafts = profile.always_drafts and drafts
        self._tokenizer = _tokenizer(cell)
        self._counters: dict[str, Any] = {}
        wanted = served_name(cell)
        starting, name = process is not None, told_name(cell)

        async def why_not(client: Client) -> str:
            return await not_ready(client, wanted, self.endpoint, starting=starting, told=name)

        wait_ready(process, lambda: self._run(why_not), timeout=spec.patience(starting=starting),
                   name=f"the {profile.name} server at {spec.base_url}")  # fmt: skip
        try:
            self._found = self._run(self._probe)
        except Trouble as e:
            raise _probe_failed(e, spec) from None
        self._image = told.image(spec)
        self._flags = self._known_flags()
        self.notes = (*self._told(), *notes, *self._found.notes)

    def _run(self, work: Any) -> Any:
        async def inside() -> Any:
            async with Client(self._spec, self._spec.root, self._key) as client:
                return await work(client)

        return asyncio.run(inside())

    async def _probe(self, client: Client) -> Found:
        found = await probe(
            client, profile=self._profile, wanted=served_name(self._cell), endpoint=self.endpoint,
            thinking=self._spec.thinking, extra=self._spec.extra(), temperature=self._cell.temperature,
            check=self._refuse_other, told=told_name(self._cell),
        )  # fmt: skip
        counts = None if found.acceptance else await Source(client, self._profile).read()
        found.acceptance |= counts is not None and (counts.has("accepted") or bool(counts.lengths))
        for text in TEXTS if self._tokenizer is not None else ():
            answer = await ask(client, body(self.endpoint, found.model, text, 1), self.endpoint)
            policy, problem = count_special(text, answer.prompt_tokens, self._tokenizer, self.endpoint)
            if problem and "BOS" in problem:
                raise EvalkitError(problem, "let either the server or the prompt add it")
            found.bos = bos_mark(policy, self._cell.engine.model) or found.bos
            found.notes += [problem] if problem and problem not in found.notes else []
        return found

    def _refuse_other(self, pages: Mapping[str, Any]) -> None:
        """A server of another setting than the cell's is refused before it is asked for long."""
        setting.refuse_own(self._spec.engine, pages, self._cell.to_json(), self._spec.base_url)
        flags = told.settings(self._profile, pages)
        setting.refuse_other(self._profile, flags, self._cell.to_json(), self._spec.base_url)

    def _known_flags(self) -> dict[str, str]:
        """What is known of the server's setting: of one that was started here all, else what its pages tell."""
        if self._process is None:
            return told.settings(self._profile, self._found.pages)
        return told.flags(self._process.command) | told.variables(
            self._spec, self._profile, asked=asked_of(self._cell, self._profile).variables
        )

    @property
    def record(self) -> Mapping[str, Any]:
        """For a run's provenance: image and flags of the server, its command, and what its pages say of it."""
        command = told.redact_args(self._process.command) if self._process is not None else []
        pages = {path: told.plain(page) for path, page in self._found.pages.items()}
        return {"image": self._image, "flags": self._flags,
                "served": {"command": command, "pages": pages, "sampling": self._found.sampling}}  # fmt: skip

    def _told(self) -> list[str]:
        out = [f"asked on {self.endpoint}, {'with the chat template of the server' if self._chat else 'as plain text'}"]
        if extra := self._spec.extra():
            out.append(f"--extra-body added {json.dumps(extra, sort_keys=True)} to every request")
        if self._found.thinks:
            out.append("the model thinks: the task's stops are applied here, after its thinking")
        out += [f"{self._profile.name} does not tell {what}" for what in self._profile.missing]
        if self._profile.untold and self._cell.k and not self._found.acceptance:
            out.append(f"the server does not tell {self._profile.untold}")
        if not self._image:
            out.append(f"the image that serves is not known: set {told.IMAGE} to record it")
        if not self._flags:
            out.append("the server does not tell its flags: a restart with others would not be seen")
        if self._process is None:
            out += setting.untold(self._profile, self._flags, self._cell.quant)
        return out

    @property
    def chat_template(self) -> bool:
        """Whether prompts are asked through a chat template."""
        return self._chat

    @property
    def _chat(self) -> bool:
        return self.endpoint == "chat"

    @property
    def settings(self) -> Mapping[str, str]:
        """As Backend's, with what makes a protocol: runs that differ in these are no pair."""
        dtype = {"float32": "float32", "bf16": "bf16"}.get(self._cell.quant, "server's")
        out = {"device": "server", "device_name": f"{self._profile.name} {self._found.version}", "dtype": dtype}
        out |= {"engine": self._profile.name, "server_version": self._found.version, "asked_on": self.endpoint}
        out |= {"thinking": self._found.thinking, "bos": self._found.bos}
        out["served_flags"] = told.digest({"image": self._image, **self._flags} if self._image else self._flags)
        out["stops"] = "applied here" if self._found.thinks else "sent"
        if not self._chat:  # plain completions are the same question wherever they are asked
            return out | {name: ASKED[name] for name in ("endpoint", "template")}
        mode = "thinking_on" if self._found.thinks else "thinking_off"
        return out | {"endpoint": "chat", "template": _template(self._cell), "mode": mode}

    @property
    def counters(self) -> Mapping[str, Any]:
        return dict(self._counters)

    @property
    def encode(self) -> Any:
        """Token ids of texts, where the target's folder has a tokenizer; None elsewhere."""
        tokenizer = self._tokenizer
        if tokenizer is None or self._chat:
            return None
        return lambda texts: [e.ids for e in tokenizer.encode_batch(list(texts))]

    def generate(self, requests: Sequence[Request], on_finish: OnFinish) -> None:
        """Runs all requests, and reads the server's counters around them."""

        async def work(client: Client) -> None:
            session = Session(
                client, self._spec, self._profile, found=self._found, endpoint=self.endpoint, k=self._cell.k,
                process=self._process, always_drafts=self._always_drafts,
            )  # fmt: skip
            try:
                await session.run(requests, on_finish)
            finally:
                self._add(session)

        self._run(work)

    def _add(self, session: Session) -> None:
        told = {"acceptance": session.reading.to_json()} if session.reading else {}
        told |= {"drafted": session.drafted} if session.drafted else {}
        self._counters = join(self._counters, {"client": session.faults.to_json(), **told})

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        raise EvalkitError("a server is not asked for the likelihood of given texts", "use a task that generates")

    def close(self) -> None:
        """Ends a server that was started for this cell."""
        if self._process is not None:
            self._process.stop()


def _probe_failed(e: Trouble, spec: ServerSpec) -> EvalkitError:
    """The error of a probe without an answer. What --extra-body adds is in no request before the probes, so a refusal
    that comes first here is most likely of that."""
    refused = e.kind in ("HTTP 400", "HTTP 422")
    if refused and (extra := spec.extra()):
        named = [n for n in extra if n in str(e)] or list(extra)
        return EvalkitError(f"the server at {spec.base_url} refuses a request with --extra-body ({e})",
                            f"take {', '.join(named)} out of --extra-body")  # fmt: skip
    fix = "it says what it refuses; see --endpoint and --thinking" if refused else "look at its log"
    return EvalkitError(f"the server at {spec.base_url} fails in a probe ({e})", fix)


def told_name(cell: Cell) -> str:
    """The model's name as somebody gave it, whole; "" where there is only the built-in target's."""
    spec, model = cell.server, cell.engine.model
    assert spec is not None
    if spec.served_name or not spec.base_url:  # a server that is started here got this name
        return served_name(cell)
    if cell.target in TARGETS:
        return ""
    return cell.target if model.is_dir() else model.as_posix()


def bos_mark(policy: str, model: Path) -> str:
    """What a measured BOS policy is called: where the server adds no token and the engine in this process adds none
    to this target's prompts either, both leave it to the tokenizer. `model` is a folder with a tokenizer.json."""
    return ASKED["bos"] if policy == NO_SPECIAL and not Tokenizer(model).bos else policy


def _tokenizer(cell: Cell) -> Any:
    path = cell.engine.model / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as e:  # tokenizers raises nothing narrower
        raise EvalkitError(f"{path} can't be read ({e})", "restore the file") from None


def _template(cell: Cell) -> str:
    """The chat template's identity: its hash where the target's folder has it, else that it is the server's own."""
    names = [n for n in ("chat_template.jinja", "tokenizer_config.json") if (cell.engine.model / n).is_file()]
    return f"chat:{checkpoint_hash(cell.engine.model, names)[:16]}" if names else "chat:server's own"
