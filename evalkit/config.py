"""What is to be run: Cell, one full setting. Standard library only.

A Cell holds an EngineConfig, so K, the quant mode and the draft are defined once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.api import MAX_TOP_K
from engine.config import VERIFY, EngineConfig, QuantMode, nearest
from engine.config_fields import architecture, read_json
from engine.eagle3_config import is_eagle3
from engine.errors import EngineError
from evalkit import online_quant
from evalkit.errors import EvalkitError
from evalkit.servers.spec import METHODS, ServerSpec
from evalkit.servers.unheard import refuse_unheard

ROOT = Path(__file__).resolve().parent.parent
TASKS = ROOT / "tasks"
REFERENCE = ROOT / "engine" / "reference"
DEFAULT_K = 7
DEFAULT_BATCH = 64
FEWSHOT_SEED = 1234  # lm-eval's own, so that a prompt here is the prompt there


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A draft by name: the engine's method and, where the method has weights, their folder."""

    method: str
    path: Path | None = None


TARGETS: Mapping[str, Path] = {"gradeschool-m3": REFERENCE / "target"}
DRAFTS: Mapping[str, DraftSpec] = {
    "dspark": DraftSpec("dspark", REFERENCE / "draft"),
    "dspark-weak": DraftSpec("dspark", REFERENCE / "draft-weak"),
    "eagle3": DraftSpec("eagle3", REFERENCE / "draft-eagle3"),
    "ngram": DraftSpec("ngram"),
    "none": DraftSpec("none"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One full setting: a task, a target with a draft, and how text is drawn.

    `target` and `draft` are names for people (a folder's name where a path was given); what is run is in
    `engine`. `shots` None and `max_tokens` 0 mean what the task says; `limit` 0 means all documents, and
    any other limit draws that many documents with `seed`. `stop_early` lets a sequential rule end the run. `server` is
    the engine outside that runs it; None is the built-in engine.
    """

    engine: EngineConfig
    task: str = "gradeschool"
    target: str = "gradeschool-m3"
    draft: str = "none"
    data: Path | None = None
    limit: int = 0
    shots: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 0
    seed: int = 0
    stop_early: bool = False
    server: ServerSpec | None = None

    def __post_init__(self) -> None:
        for name, low in (("limit", 0), ("max_tokens", 0), ("top_k", 0), ("shots", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise EvalkitError(f"{name} is {value}", f"give a number of at least {low}")
        if self.top_k > MAX_TOP_K:
            raise EvalkitError(f"top_k is {self.top_k}", f"give 0 (off) or a number of at most {MAX_TOP_K}")
        if not 0.0 <= self.temperature <= 100.0:
            raise EvalkitError(f"temperature is {self.temperature}", "give a number from 0 to 100")
        if not 0.0 < self.top_p <= 1.0:
            raise EvalkitError(f"top_p is {self.top_p}", "give a number above 0 and at most 1")
        if not self.temperature and (self.top_p != 1.0 or self.top_k):
            said = [f"{name} is {value}" for name, value, off in (("top_p", self.top_p, 1.0), ("top_k", self.top_k, 0))
                    if value != off]  # fmt: skip
            raise EvalkitError(f"{' and '.join(said)} at temperature 0: a greedy answer draws no token",
                               "leave it away, or give a temperature above 0")  # fmt: skip
        e = self.engine
        if self.server is not None and (e.verify != "standard" or e.scheduled):
            raise EvalkitError("verify rule, forced length and confidences are set for this project's engine only",
                               "leave them away; a server's own flags set its rule")  # fmt: skip
        if self.stop_early and self.forced:
            raise EvalkitError("--stop-early with --forced-length: forced acceptance has no score to decide by",
                               "leave --stop-early away")  # fmt: skip
        if self.stop_early and self.limit:
            raise EvalkitError(f"--stop-early with --limit {self.limit}: a subset can never pass",
                               "leave --limit away; the run stops as soon as it is decided")  # fmt: skip

    @classmethod
    def make(
        cls,
        *,
        task: str = "gradeschool",
        model: str = "gradeschool-m3",
        draft: str = "dspark",
        k: int | None = None,
        quant: str = "float32",
        online_quant_config: str = "",
        draft_width: str = "k",
        verify: str = "",
        forced_length: float = 0.0,
        confidence_threshold: float = 0.0,
        verify_rows: int = 0,
        batch: int | None = None,
        mono: str = "",
        graphs: str = "off",
        kernels: str = "auto",
        threads: int = 0,
        tp: int = 1,
        device: str = "auto",
        prefix_cache: bool = True,
        prefill_decode_interval: int | None = None,
        prefill_delayer: str = "",
        data: Path | None = None,
        limit: int = 0,
        shots: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        max_tokens: int = 0,
        seed: int = 0,
        stop_early: bool = False,
        server: ServerSpec | None = None,
    ) -> Cell:
        """A Cell from the words of the command line: names or folders for `model` and `draft`.

        K is 7 unless given, and 0 where there is no draft; K=0 turns the draft off. `quant` is a preset or words such
        as `w=ptpc_fp8 kv=nvfp4`; `online_quant_config` is JSON, or a file that holds it. `verify` is standard unless
        `forced_length` is given, which makes it forced. `batch` is 64 unless given, and with a preset that is a band of
        concurrency the most requests of the band; `prefill_decode_interval` is the band's, elsewhere 0.
        """
        if server is not None and (mono, graphs, kernels) != ("", "off", "auto"):
            raise EvalkitError("--mono, --graphs and --kernels are of the built-in engine",
                               "leave them away, or use --server-arg")  # fmt: skip
        if server is not None:
            refuse_unheard(
                server, verify=verify, forced_length=forced_length, confidence_threshold=confidence_threshold,
                verify_rows=verify_rows, device=device, batch=batch, prefix_cache=prefix_cache, threads=threads,
                online_quant_config=online_quant_config.strip(), draft_width=draft_width,
            )  # fmt: skip
        delayed = server is None or (server.engine == "atom" and not server.base_url)
        if (prefill_decode_interval is not None and not delayed) or (prefill_delayer and server is not None):
            raise EvalkitError(
                "--prefill-decode-interval is of the built-in engine and of an ATOM that is started, --prefill-delayer "
                "of the built-in engine", "use --server-arg or --server-env"
            )  # fmt: skip
        if prefill_decode_interval is None:
            prefill_decode_interval = band_interval(quant) if delayed else 0
        if server is None:
            target, model_path = resolve_target(model)
            name, spec = resolve_draft(draft)
        else:
            target, model_path = (model, TARGETS[model]) if model in TARGETS else server_target(model)
            folder = Path(draft).resolve() if draft not in METHODS and Path(draft).is_dir() else None
            name, method = (folder.name, _method_of(folder)) if folder else server.draft_of(draft)
            server = replace(server, method=method)
            spec = DraftSpec("none" if method == "none" else "external", folder)
        if k is None:
            k = 0 if spec.method == "none" else DEFAULT_K
        if k == 0:
            _refuse_of_a_draft(verify, confidence_threshold, verify_rows)
            name, spec = "none", DRAFTS["none"]
            server = replace(server, method="none") if server else None
        if forced_length and verify not in ("", "forced"):
            raise EvalkitError(f"--verify {verify} with --forced-length {forced_length:g}: forced acceptance verifies "
                               "nothing", "leave out --verify with --forced-length")  # fmt: skip
        if verify not in ("", *VERIFY):
            rules = tuple(rule for rule in VERIFY if rule != "forced")  # which has an option of its own
            raise EvalkitError(f"unknown verify rule {verify!r}", f"{nearest(verify, rules)}use {' or '.join(rules)}")
        if verify == "forced" and not forced_length:
            raise EvalkitError("--verify forced without a length to draw", "give --forced-length alone")
        engine = EngineConfig(
            model=model_path,
            draft=spec.method,
            draft_path=spec.path,
            k=k,
            draft_width=draft_width,
            verify=verify or ("forced" if forced_length else "standard"),
            forced_length=forced_length,
            confidence_threshold=confidence_threshold,
            verify_rows=verify_rows,
            gaps=True,
            quant=quant,
            online_quant_config=read_online_quant(online_quant_config),
            device=device,
            max_batch=band_batch(quant) if batch is None else batch,
            mono=mono or band_mono(quant),
            graphs=graphs,
            kernels=kernels,
            prefix_cache=prefix_cache,
            prefill_decode_interval=prefill_decode_interval,
            prefill_delayer=prefill_delayer,
            threads=threads,
            tp=tp,
            seed=seed,
        )
        return cls(
            engine=engine, task=task, target=target, draft=name, data=data, limit=limit, shots=shots,
            temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=max_tokens, seed=seed, stop_early=stop_early,
            server=server,
        )  # fmt: skip

    @property
    def k(self) -> int:
        return self.engine.k

    @property
    def forced(self) -> bool:
        """Whether acceptance is drawn: such a run is for speed, and its texts are never scored."""
        return self.engine.verify == "forced"

    @property
    def quant(self) -> str:
        return self.engine.quant

    def to_json(self) -> dict[str, Any]:
        """The cell as plain JSON values, flat: engine settings beside the task's."""
        own = {f: getattr(self, f) for f in self.__slots__ if f not in ("engine", "server")}
        engine = {n: v for n, v in asdict(self.engine).items() if n not in ("draft", "seed", "model")}
        engine["draft_method"] = self.engine.draft
        families = QuantMode.parse(self.quant, self.engine.dtype).families()  # "auto" where the device will decide
        engine |= {f"quant_{family}": found for family, found in families.items()}
        engine["model"] = self.engine.model
        if self.server is not None:
            own["server"] = self.server.to_json()
        return {n: str(v) if isinstance(v, Path) else v for n, v in {**own, **engine}.items()}

    def stem(self, task_name: str) -> str:
        """The readable part of a run's id."""
        parts = [task_name, self.target, self.draft, f"k{self.k}", self.quant]
        online = online_quant.words(online_quant.canonical(self.engine.online_quant_config))
        parts += [online] if online else []
        if self.engine.tp > 1:
            parts.append(f"tp{self.engine.tp}")
        if self.server is not None:
            parts.insert(1, self.server.engine)
        if self.limit:
            parts.append(f"n{self.limit}")
        return "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in p).strip("-.") for p in parts)


def _refuse_of_a_draft(verify: str, confidence_threshold: float, verify_rows: int) -> None:
    """K=0 verifies nothing: a rule or confidences that choose drafts contradict it."""
    odd = [f"--verify {verify}"] if verify == "block" else []
    odd += [f"--confidence-threshold {confidence_threshold:g}"] if confidence_threshold else []
    odd += [f"--verify-rows {verify_rows}"] if verify_rows else []
    if odd:
        raise EvalkitError(f"{' and '.join(odd)} at K=0: there is no draft to verify",
                           "leave it away, or give a K of at least 1")  # fmt: skip


def band_batch(quant: str) -> int:
    """Requests decoded together where nobody says: the upper end of a preset's band of concurrency, else 64."""
    band = QuantMode.parse(quant, "auto").band
    return DEFAULT_BATCH if band is None else band.concurrency[1]


def band_mono(quant: str) -> str:
    """Whether Mono serves what it covers where nobody says: in the presets of bands that have it."""
    band = QuantMode.parse(quant, "auto").band
    return "auto" if band is not None and band.mono else "off"


def band_interval(quant: str) -> int:
    """The prefill delayer's interval where nobody says: a band's, else 0."""
    band = QuantMode.parse(quant, "auto").band
    return band.prefill_decode_interval if band is not None else 0


def resolve_target(word: str) -> tuple[str, Path]:
    """Name and folder of a target given by name or by folder."""
    if word in TARGETS:
        return word, TARGETS[word]
    path = Path(word)
    if path.is_dir():
        return path.resolve().name, path.resolve()
    names = tuple(TARGETS)
    raise EvalkitError(
        f"no target {word!r}: neither a name nor a folder",
        f"{nearest(word, names)}use {', '.join(names)} or the folder of a checkpoint",
    )


def server_target(word: str) -> tuple[str, Path]:
    """Name and place of a target that a server runs: a folder here, or only the name the server knows it by."""
    path = Path(word)
    return (path.resolve().name, path.resolve()) if path.is_dir() else (word.rstrip("/").split("/")[-1], path)


def resolve_draft(word: str) -> tuple[str, DraftSpec]:
    """Name and DraftSpec of a draft given by name or by the folder of a DSpark or EAGLE3 checkpoint."""
    if word in DRAFTS:
        return word, DRAFTS[word]
    path = Path(word)
    if path.is_dir():
        return path.resolve().name, DraftSpec(_method_of(path), path.resolve())
    names = tuple(DRAFTS)
    raise EvalkitError(
        f"no draft {word!r}: neither a name nor a folder",
        f"{nearest(word, names)}use {', '.join(names)} or the folder of a DSpark or EAGLE3 checkpoint",
    )


def _method_of(folder: Path) -> str:
    """What a draft's config.json says it is; DSpark where it cannot be read, and loading it will say why."""
    try:
        return "eagle3" if is_eagle3(architecture(read_json(folder / "config.json"))) else "dspark"
    except EngineError:
        return "dspark"


def read_online_quant(word: str) -> str:
    """JSON text given as itself or as a file's path; "" stays "". The engine says what is wrong in it."""
    text = word.strip()
    if text and not text.startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise EvalkitError(f"online_quant_config {word!r} is neither JSON nor a readable file ({e})",
                               "give a JSON object, or the file that holds it") from None  # fmt: skip
    return text


def resolve_task(word: str) -> Path:
    """The lm-eval YAML of a task: tasks/NAME/task.yaml, tasks/*/VARIANT.yaml by its own name, or a path."""
    if word.endswith((".yaml", ".yml")):
        path = Path(word)
        if path.is_file():
            return path.resolve()
        raise EvalkitError(f"the task file {word} does not exist", f"use {', '.join(task_names())} or a YAML's path")
    known = task_names()
    if word in known:
        return known[word]
    if (Path(word) / "task.yaml").is_file():
        return (Path(word) / "task.yaml").resolve()
    raise EvalkitError(
        f"unknown task {word!r}", f"{nearest(word, tuple(known))}use {', '.join(known)} or a YAML's path"
    )


def task_names() -> dict[str, Path]:
    """Every task in tasks/ by the name it gives itself (the `task:` line of its YAML)."""
    found: dict[str, Path] = {}
    for path in sorted(TASKS.glob("*/*.yaml")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("task:"):
                found[line.removeprefix("task:").split("#")[0].strip().strip("'\"")] = path
                break
    return found
