"""Which paths beside the ordinary one serve a step: Mono and graphs, what they need, what is said where they can't."""

from __future__ import annotations

from engine.config import EngineConfig, QuantMode
from engine.draft import Drafter
from engine.errors import EngineError
from engine.graphs import Graphs
from engine.kv_cache import KVCache
from engine.model import Target
from engine.moe import MoE
from engine.mono.path import MonoPath
from engine.mono.router import REASONS, Router, largest_batch, unfit
from engine.runner import Runner


def make_runner(
    config: EngineConfig, quant: QuantMode, target: Target, drafter: Drafter | None, cache: KVCache, *, pages: int,
    max_model_len: int,
) -> Runner:  # fmt: skip
    """The runner, with the paths beside the ordinary one that the configuration asks for and the target allows.

    pages: of one sequence of max_model_len tokens. Raises EngineError for a path that is demanded and can't serve.
    """
    cfg, device = target.cfg, cache.device
    own = cache.layers[: cfg.num_layers]
    why = "off" if config.mono == "off" else unfit(
        formats=[s.format for s in own], index_formats=[s.index_format for s in own if s.index_dim],
        dtype=quant.dtype, device=device.type, max_length=max_model_len, tp=config.tp, qk_norm=cfg.qk_norm,
    )  # fmt: skip
    if why and config.mono == "require":
        raise EngineError(f"mono is require, and Mono can serve no step: {REASONS[why]}", "use --mono auto")
    router = Router(config.k, config.graph_sizes, why)
    mono = None if why else MonoPath(target, cache)
    made = Runner(target, drafter, cache, config, router=router, mono=mono)
    if config.graph_sizes and device.type == "cuda" and not cache.kernels.triton:
        raise EngineError(f"graphs is {config.graphs}, and no kernels run: plain torch waits for the GPU in every "
                          "step, which no graph can hold", "use --graphs off, or --kernels auto")  # fmt: skip
    experts = (m for m in target.modules() if isinstance(m, MoE))
    if config.graph_sizes and device.type == "cuda" and any(m.counts_on_host for m in experts):
        raise EngineError(f"graphs is {config.graphs}, and the target has experts in a format without a kernel: how "
                          "many rows each gets is read on the host, which no graph can hold",
                          "use --graphs off, or quantise the experts in ptpc_fp8, mxfp8 or mxfp4")  # fmt: skip
    if config.graph_sizes:
        made.graphs = Graphs(
            made.ordinary, sizes=config.graph_sizes, width=config.k + 1, device=device, pages=pages,
            max_length=max_model_len,
        )  # fmt: skip
    return made


def band_notes(config: EngineConfig, quant: QuantMode) -> list[str]:
    """In what a configuration is not the band of the preset that it names, a sentence each."""
    band = quant.band
    if band is None:
        return []
    out = [f"{quant.name}: K is {config.k}, the band's is {band.k}"] if config.k != band.k else []
    low, high = band.concurrency
    if not low <= config.max_batch <= high:
        out.append(f"{quant.name}: up to {config.max_batch} decode together, the band is of {low} to {high} at once")
    if band.prefill_decode_interval != (asked := config.prefill_decode_interval):
        out.append(f"{quant.name}: prefill_decode_interval is {asked}, the band's is {band.prefill_decode_interval}")
    return out


def path_notes(config: EngineConfig, quant: QuantMode, run: Runner) -> list[str]:
    """Where a path that the preset counts on serves less than one might expect, a sentence each."""
    band, sparse = quant.band, run.target.cfg.sparse
    out = band_notes(config, quant)
    if band and band.mono and run.mono is None:
        out.append(f"{quant.name}: Mono serves no step: {REASONS[run.router.why_not]}")
    best = largest_batch(config.k, run.router.sizes)
    if run.mono is not None and best < config.max_batch and band:
        out.append(f"{quant.name}: at K={config.k} Mono serves steps of up to {best} requests, and up to "
                   f"{config.max_batch} decode together: --batch {best} keeps every step on it")  # fmt: skip
    if band and band.fused_verify_topk and not (sparse and any(sparse.computes)):
        out.append(f"{quant.name}: fused_verify_topk serves no step: the target has no block-sparse layer")
    return out
