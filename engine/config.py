"""How to run (EngineConfig) and what a checkpoint is (ModelConfig, DraftConfig). Standard library only.

config.json files are read in checkpoint_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.delayer import DelayerConfig
from engine.errors import EngineError, nearest
from engine.graph_sizes import canonical as canonical_graphs
from engine.graph_sizes import graph_sizes
from engine.mode import DTYPES, QuantMode
from engine.mono.router import MODES as MONO_MODES
from engine.mono.router import check_demand

__all__ = ["DTYPES", "MAX_K", "DraftConfig", "EngineConfig", "ModelConfig", "QuantMode", "nearest"]
VERIFY = ("standard", "block", "forced")
KERNELS = ("auto", "twin", "triton")
MAX_K = 7  # the block size every shipped draft is trained at
MAX_EXTERNAL_K = 32  # of a draft that an engine outside runs


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One way to run a target with a draft.

    `draft` names the method: none, dspark, eagle3, ngram, scripted or external (an engine outside runs it);
    `draft_path` is a checkpoint folder where the method has weights. `draft_width` "k" drafts blocks of K slots, as
    ATOM does; "block" drafts the trained block size and keeps the first K, as DeepSpec does: two different drafts, so
    it is recorded.
    `verify` is the rule that accepts drafts: "standard" judges them one by one, "block" the block as a whole (the same
    law, as many drafts or more); "forced" draws acceptance with `forced_length` as its mean, for speed runs, and the
    text means nothing. `confidence_threshold` and `verify_rows` let the draft's confidences choose how many drafts are
    verified, see engine.confidence; with `verify_rows` a sampled text depends on what else is in the batch.
    `quant` is what QuantMode.parse takes. `online_quant_config` is ATOM's JSON, see engine.quant.online; "" quantises
    the weights as `quant` says. `mono`: "auto" lets Mono serve the decode steps that it covers (engine/mono/router.py),
    "require" refuses a configuration in which one could fall to the ordinary path; `mono_check` computes each of its
    steps on both paths. `kernels`: "auto" runs Triton's on a GPU and plain torch elsewhere, "twin" plain torch
    anywhere, "triton" refuses where they cannot run. `graphs`: off, atom, dense or sizes such as "1,2,4" that decode
    batches are padded to. `prefill_decode_interval` above 0 has the prefill delayer (engine/delayer.py) with that many
    ticks, and `prefill_delayer` its other settings as words.
    """

    model: Path
    draft: str = "none"
    draft_path: Path | None = None
    k: int = 0
    draft_width: str = "k"
    verify: str = "standard"  # standard | block | forced
    forced_length: float = 0.0  # accepted length that forced acceptance draws; 0: acceptance is verified
    confidence_threshold: float = 0.0  # verify a draft only while every confidence reaches this; 0: all
    verify_rows: int = 0  # rows of one verify tick, the surest drafts first; 0: no limit
    gaps: bool = False  # note the target's top-two logit gap at each token
    quant: str = "float32"
    online_quant_config: str = ""
    dtype: str = "auto"  # float32 | bf16 | auto
    device: str = "auto"  # cpu | cuda | auto (ROCm calls its devices cuda too)
    max_batch: int = 64  # sequences decoded together
    max_batched_tokens: int = 2048  # rows of one prefill tick
    max_model_len: int = 0  # 0: what the checkpoint allows
    page_size: int = 16  # tokens in one KV page
    num_pages: int = 0  # 0: enough for max_batch full-length sequences, within memory_limit_mb
    memory_limit_mb: int = 512  # for the KV cache
    prefix_cache: bool = True
    prefill_decode_interval: int = 0  # ticks that belong to decodes after each prefill tick; 0: prefill goes first
    prefill_delayer: str = ""
    mono: str = "off"
    mono_check: bool = False
    graphs: str = "off"
    kernels: str = "auto"  # auto | twin | triton
    threads: int = 0  # of all ranks together; 0: leave torch's own choice
    tp: int = 1  # ranks that share the model (tensor parallelism), a process and on a GPU a device each
    seed: int = 0

    def __post_init__(self) -> None:
        methods = ("none", "dspark", "eagle3", "ngram", "scripted", "external")
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
        if self.draft_width == "block" and self.draft in ("ngram", "eagle3"):
            raise EngineError(f"draft_width is block, and {self.draft} drafts no blocks", "use draft_width k")
        self._check_verify()
        object.__setattr__(self, "quant", QuantMode.canonical(self.quant))  # one setting, one spelling
        if self.dtype not in (*DTYPES, "auto"):
            raise EngineError(f"unknown dtype {self.dtype!r}", f"use auto or one of {', '.join(DTYPES)}")
        if self.threads < 0:
            raise EngineError(f"threads is {self.threads}", "give 0 (torch's own choice) or a positive number")
        for name in ("max_batch", "max_batched_tokens", "page_size", "tp"):
            if getattr(self, name) < 1:
                raise EngineError(f"{name} is {getattr(self, name)}", "give a number of at least 1")
        for name in ("max_model_len", "num_pages"):
            if getattr(self, name) < 0:
                raise EngineError(f"{name} is {getattr(self, name)}", "give 0 (the default) or a positive number")
        object.__setattr__(self, "prefill_delayer", self.delayer.words)
        self._check_paths()

    @property
    def delayer(self) -> DelayerConfig:
        """The prefill delayer's settings. Raises EngineError for words that are none."""
        return DelayerConfig.parse(self.prefill_decode_interval, self.prefill_delayer)

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Sizes that decode batches are padded to, in sequences; () where they are not."""
        return graph_sizes(self.graphs, max_batch=self.max_batch, max_batched_tokens=self.max_batched_tokens, k=self.k)

    def _check_paths(self) -> None:
        object.__setattr__(self, "graphs", canonical_graphs(self.graphs))
        sizes = self.graph_sizes
        if self.kernels not in KERNELS:
            hint = nearest(self.kernels, KERNELS)
            raise EngineError(f"unknown kernels {self.kernels!r}", f"{hint}use one of {', '.join(KERNELS)}")
        if self.mono not in MONO_MODES:
            hint = nearest(self.mono, MONO_MODES)
            raise EngineError(f"unknown mono {self.mono!r}", f"{hint}use one of {', '.join(MONO_MODES)}")
        if self.mono != "require":
            return
        mode = QuantMode.parse(self.quant, self.dtype)
        if mode.kv != "fp8" or mode.index != "fp8" or mode.fp8 != "e4m3fn":
            raise EngineError(f"mono is require, and the quant mode is {self.quant}: Mono reads fp8 caches only",
                              "use a mode with kv=fp8 index=fp8, or a preset as m31flash-c1-4")  # fmt: skip
        check_demand(self.k, self.max_batch, sizes)

    @property
    def scheduled(self) -> bool:
        """Whether the draft's confidences choose how many drafts are verified."""
        return bool(self.k and (self.confidence_threshold or self.verify_rows))

    def _check_verify(self) -> None:
        if self.verify not in VERIFY:
            hint = nearest(self.verify, VERIFY)
            raise EngineError(f"unknown verify rule {self.verify!r}", f"{hint}use one of {', '.join(VERIFY)}")
        forced, length = self.verify == "forced", self.forced_length
        if forced != bool(length):
            raise EngineError(
                f"verify is {self.verify} and forced_length {length:g}",
                "set verify forced and its length, or neither",
            )
        if forced and not self.k:
            raise EngineError("forced acceptance at K=0: there is no draft to accept", "use a K of at least 1")
        if forced and not 1.0 <= length <= self.k + 1:
            raise EngineError(f"forced_length is {length:g} at K={self.k}",
                              f"give a length from 1 to {self.k + 1}, the target's token included")  # fmt: skip
        if not 0.0 <= self.confidence_threshold <= 1.0:
            raise EngineError(f"confidence_threshold is {self.confidence_threshold:g}", "give a number from 0 to 1")
        if self.verify_rows < 0:
            raise EngineError(f"verify_rows is {self.verify_rows}",
                              f"give 0 (no limit), or at least {self.max_batch}: a row for each sequence")  # fmt: skip
        if self.verify_rows and self.verify_rows < self.max_batch:
            raise EngineError(f"verify_rows is {self.verify_rows}, a tick of {self.max_batch} sequences has a row each",
                              f"give at least {self.max_batch}, or a smaller batch")  # fmt: skip
        if forced and self.scheduled:
            raise EngineError("forced acceptance with confidences that choose the drafts: its mean would not be met",
                              "leave confidence_threshold and verify_rows at 0")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Mixture of experts: sigmoid routing with a correction bias that counts for the choice alone."""

    layers: tuple[bool, ...]  # one a decoder layer: experts, or the dense MLP
    experts: int
    experts_per_token: int
    expert_size: int  # intermediate size of one routed expert
    shared_size: int  # intermediate size of the shared experts together; 0: none
    scaling: float  # of the routed sum
    routing_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseConfig:
    """Block-sparse attention: an index picks, for each KV head, the blocks of keys that a query sees.

    index_heads equals the KV heads. `computes` marks the sparse layers that pick; the others reuse the
    pick of the last one before them.
    """

    layers: tuple[bool, ...]  # one a decoder layer: block-sparse, or all keys
    computes: tuple[bool, ...]  # one a decoder layer, False where it is not sparse
    index_heads: int
    index_dim: int
    block_size: int  # keys in a block
    topk: int  # blocks a query sees, forced ones included
    init_blocks: int  # first blocks, always seen
    local_blocks: int  # last blocks up to the query's own, always seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretch of RoPE: wavelengths over `original_positions` / low grow by `factor`, short ones stay."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a target, read from its config.json. Families: MiniMax-M3, Llama, Qwen2 and Qwen3 (dense)."""

    family: str  # minimax_m3 | llama | qwen2 | qwen3
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
    rope_scaling: RopeScaling | None = None  # None: plain RoPE
    qk_norm: bool = True  # q and k are normed per head before RoPE
    attention_bias: str = ""  # projections with a bias: "" | qkv | qkvo
    eps: float = 1e-6
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    moe: MoEConfig | None = None  # None: a dense MLP in every layer
    sparse: SparseConfig | None = None  # None: every layer attends to all keys
    mtp_modules: int = 0  # layers of the checkpoint after the last, which predict further tokens and are left out
    eos_token_ids: tuple[int, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Shape of a DSpark draft: `model` is its decoder layer, in the target's form."""

    model: ModelConfig
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    markov_rank: int  # 0: no Markov head
    confidence: bool
    markov_head: str = "vanilla"  # vanilla | gated | rnn
    confidence_with_markov: bool = True  # the confidence head sees the previous token's Markov embedding
    confidence_temperatures: tuple[float, ...] = ()  # by position, from the first; () is 1 everywhere
    capture_convention: str = "post_layer"  # id i is the residual stream after layer i
    window: int = 0  # context keys before its own position that a slot sees, itself included; 0: all
    made_for: dict[str, Any] = field(default_factory=dict, compare=False)  # what it records of its target
