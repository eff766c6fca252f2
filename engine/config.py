"""How to run (EngineConfig) and what a checkpoint is (ModelConfig, DraftConfig). Standard library only."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import EngineError

MAX_K = 7  # the block size every shipped draft is trained at
MAX_EXTERNAL_K = 32  # of a draft that an engine outside runs
DTYPES = ("float32", "bf16")
KV_FORMATS = ("float32", "bf16", "fp8", "nvfp4")


def nearest(word: str, known: tuple[str, ...]) -> str:
    """'; did you mean X?' for a mistyped name, or ''."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? " if close else ""


@dataclass(frozen=True, slots=True)
class QuantMode:
    """Storage format of each tensor family: weights, activations, KV cache.

    The four names of the command line are presets. `fp8` and `nvfp4` change the KV cache only; weights
    and activations stay in `dtype`, which is float32 on a CPU and bf16 on an accelerator unless set.
    """

    name: str
    w: str
    act: str
    kv: str

    @classmethod
    def preset(cls, name: str, dtype: str = "float32") -> QuantMode:
        """The mode called `name` (float32, bf16, fp8, nvfp4). Raises EngineError for any other."""
        if name not in KV_FORMATS:
            hint = nearest(name, KV_FORMATS)
            raise EngineError(f"unknown quant mode {name!r}", f"{hint}use one of {', '.join(KV_FORMATS)}")
        if dtype not in DTYPES:
            raise EngineError(f"unknown dtype {dtype!r}", f"use one of {', '.join(DTYPES)}")
        if name in DTYPES:
            dtype = name
        return cls(name=name, w=dtype, act=dtype, kv=name)

    def __str__(self) -> str:
        return f"w={self.w} act={self.act} kv={self.kv}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One way to run a target with a draft.

    `draft` names the method: none, dspark, ngram, scripted or external (an engine outside runs it); `draft_path` is a
    checkpoint folder where the method has weights. `draft_width` "k" drafts blocks of K slots, as ATOM does; "block"
    drafts the trained block size and keeps the first K, as DeepSpec does: two different drafts, so it is recorded.
    """

    model: Path
    draft: str = "none"
    draft_path: Path | None = None
    k: int = 0
    draft_width: str = "k"
    quant: str = "float32"
    dtype: str = "auto"  # float32 | bf16 | auto
    device: str = "auto"  # cpu | cuda | auto (ROCm calls its devices cuda too)
    max_batch: int = 64  # sequences decoded together
    max_batched_tokens: int = 2048  # rows of one prefill tick
    max_model_len: int = 0  # 0: what the checkpoint allows
    page_size: int = 16  # tokens in one KV page
    num_pages: int = 0  # 0: enough for max_batch full-length sequences, within memory_limit_mb
    memory_limit_mb: int = 512  # for the KV cache
    prefix_cache: bool = True
    threads: int = 0  # 0: leave torch's own choice
    seed: int = 0

    def __post_init__(self) -> None:
        methods = ("none", "dspark", "ngram", "scripted", "external")
        if self.draft not in methods:
            hint = nearest(self.draft, methods)
            raise EngineError(f"unknown draft {self.draft!r}", f"{hint}use one of {', '.join(methods)}")
        limit = MAX_EXTERNAL_K if self.draft == "external" else MAX_K
        if not 0 <= self.k <= limit:
            raise EngineError(f"K is {self.k}", f"use a K from 0 (no speculation) to {limit}")
        if self.k and self.draft == "none":
            raise EngineError(f"K is {self.k} but no draft is named", "name a draft, or use K=0")
        if self.draft_width not in ("k", "block"):
            raise EngineError(f"unknown draft width {self.draft_width!r}", "use k or block")
        QuantMode.preset(self.quant)
        if self.dtype not in (*DTYPES, "auto"):
            raise EngineError(f"unknown dtype {self.dtype!r}", f"use auto or one of {', '.join(DTYPES)}")
        if self.threads < 0:
            raise EngineError(f"threads is {self.threads}", "give 0 (torch's own choice) or a positive number")
        for name in ("max_batch", "max_batched_tokens", "page_size"):
            if getattr(self, name) < 1:
                raise EngineError(f"{name} is {getattr(self, name)}", "give a number of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a target, read from its config.json. Two families: MiniMax-M3 and Qwen3."""

    family: str  # minimax_m3 | qwen3
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int  # leading dims of a head that RoPE turns; the rest pass untouched
    rope_theta: float
    intermediate_size: int  # of the dense MLP
    activation: str  # swigluoai | silu
    gemma_norm: bool  # scale is 1 + w
    tie_embeddings: bool
    max_positions: int
    eps: float = 1e-6
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    eos_token_ids: tuple[int, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Shape of a DSpark draft: `model` is its decoder layer, in the target's form."""

    model: ModelConfig
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    markov_rank: int
    confidence: bool
    confidence_temperatures: tuple[float, ...] = ()  # by position, from the first; () is 1 everywhere
    capture_convention: str = "post_layer"  # id i is the residual stream after layer i


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises EngineError when it is absent, unreadable or no object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{path} does not exist", "give the folder of a checkpoint") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise EngineError(f"{path} cannot be read as JSON ({e})", "restore the file") from None
    if not isinstance(data, dict):
        raise EngineError(f"{path} holds a {type(data).__name__}, not an object", "restore the file")
    return data


def _get(raw: dict[str, Any], path: Path, *names: str, default: Any = None) -> Any:
    """The value under the first of `names` that is there; an error where two are there and disagree."""
    found = {n: raw[n] for n in names if raw.get(n) is not None}
    if len({json.dumps(v) for v in found.values()}) > 1:
        raise EngineError(f"{path} gives {' and '.join(found)} different values", "keep one of them")
    if found:
        return next(iter(found.values()))
    if default is None:
        raise EngineError(f"{path} has no {' or '.join(names)}", "use a complete config.json")
    return default


def _eos(raw: dict[str, Any]) -> tuple[int, ...]:
    eos = raw.get("eos_token_id")
    if eos is None:
        return ()
    return tuple(int(e) for e in eos) if isinstance(eos, list) else (int(eos),)


def parse_model_config(raw: dict[str, Any], path: Path) -> ModelConfig:
    """ModelConfig of a config.json's content. Raises EngineError for an architecture it cannot compute."""
    raw = raw.get("text_config", raw)
    arch = str((raw.get("architectures") or [raw.get("model_type", "?")])[0]).lower()
    if "minimaxm3" in arch.replace("_", ""):
        family = "minimax_m3"
    elif "qwen3" in arch and "moe" not in arch:
        family = "qwen3"
    else:
        raise EngineError(f"{path} names the architecture {arch!r}", "use MiniMax-M3 (dense layers) or Qwen3")
    m3 = family == "minimax_m3"
    if m3:
        _refuse_unbuilt(raw, path)
    head_dim = int(_get(raw, path, "head_dim"))
    rope = raw.get("rope_parameters") or {}
    theta = raw.get("rope_theta", rope.get("rope_theta"))
    if theta is None:
        raise EngineError(f"{path} has no rope_theta", "use a complete config.json")
    if raw.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise EngineError(f"{path} asks for scaled RoPE", "use a checkpoint with plain RoPE")
    return ModelConfig(
        family=family,
        vocab_size=int(_get(raw, path, "vocab_size")),
        hidden_size=int(_get(raw, path, "hidden_size")),
        num_layers=int(_get(raw, path, "num_hidden_layers")),
        num_heads=int(_get(raw, path, "num_attention_heads")),
        num_kv_heads=int(_get(raw, path, "num_key_value_heads")),
        head_dim=head_dim,
        rotary_dim=round(head_dim * float(raw.get("partial_rotary_factor", 0.5 if m3 else 1.0))),
        rope_theta=float(theta),
        intermediate_size=int(_get(raw, path, "dense_intermediate_size" if m3 else "intermediate_size")),
        activation=str(raw.get("hidden_act", "swigluoai" if m3 else "silu")),
        gemma_norm=bool(raw.get("use_gemma_norm", m3)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", not m3)),
        max_positions=int(_get(raw, path, "max_position_embeddings")),
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        swiglu_alpha=float(raw.get("swiglu_alpha", 1.702)),
        swiglu_limit=float(raw.get("swiglu_limit", 7.0)),
        eos_token_ids=_eos(raw),
        raw=raw,
    )


def _refuse_unbuilt(raw: dict[str, Any], path: Path) -> None:
    """MoE and block-sparse layers are read but not computed yet: refused here, never skipped."""
    layers = int(_get(raw, path, "num_hidden_layers"))
    moe = raw.get("moe_layer_freq", [1] * layers)  # a missing list means MoE in every layer
    sparse = (raw.get("sparse_attention_config") or {}).get("sparse_attention_freq", [0] * layers)
    for name, freq in (("MoE", moe), ("block-sparse attention", sparse)):
        if any(freq):
            raise EngineError(f"{path} has {name} layers, which this engine cannot compute yet",
                              "use a checkpoint whose layers are all dense")  # fmt: skip


def load_model_config(folder: Path) -> ModelConfig:
    """ModelConfig of a checkpoint folder; generation_config.json may name more end-of-text tokens."""
    cfg = parse_model_config(read_json(folder / "config.json"), folder / "config.json")
    more = folder / "generation_config.json"
    eos = _eos(read_json(more)) if more.exists() else ()
    return replace(cfg, eos_token_ids=tuple(dict.fromkeys(cfg.eos_token_ids + eos)))


def _temperatures(raw: dict[str, Any], path: Path) -> tuple[float, ...]:
    found = tuple(float(t) for t in raw.get("confidence_temperatures", ()))
    if any(not 0.0 < t < 1e6 for t in found):
        raise EngineError(f"{path} has confidence_temperatures {list(found)}", "use positive numbers")
    return found


def load_draft_config(folder: Path) -> DraftConfig:
    """DraftConfig of a DSpark checkpoint folder; both spellings of its fields are taken."""
    path = folder / "config.json"
    raw = read_json(path)
    arch = str((raw.get("architectures") or ["?"])[0])
    if "dspark" not in arch.lower():
        raise EngineError(f"{path} names the architecture {arch!r}", "use a DSpark draft")
    ids = _get(raw, path, "target_layer_ids", "dspark_target_layer_ids")
    head = raw.get("markov_head_type", "vanilla")
    if head != "vanilla":
        raise EngineError(f"{path} has a {head!r} Markov head", "use a draft with a vanilla Markov head")
    return DraftConfig(
        model=parse_model_config(raw | {"moe_layer_freq": [0] * int(raw["num_hidden_layers"])}, path),
        block_size=int(_get(raw, path, "block_size", "dspark_block_size")),
        target_layer_ids=tuple(int(i) for i in ids),
        mask_token_id=int(_get(raw, path, "mask_token_id", "dspark_noise_token_id")),
        markov_rank=int(_get(raw, path, "markov_rank", "dspark_markov_rank")),
        confidence=bool(raw.get("enable_confidence_head", float(raw.get("confidence_head_alpha", 0.0)) > 0)),
        confidence_temperatures=_temperatures(raw, path),
        capture_convention=str(raw.get("capture_convention", "post_layer")),
    )
