"""ATOM. Its flags are those of the public tree; what is newer there is set by --server-arg."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.mode import AUTO, QuantMode
from evalkit.servers.counters import HISTOGRAM
from evalkit.servers.profile import Asked, Profile
from evalkit.servers.prometheus import PageMap
from evalkit.servers.spec import ServerSpec

if TYPE_CHECKING:
    from evalkit.config import Cell


def launch(cell: Cell, spec: ServerSpec, *, model: str, name: str, method: str) -> list[str]:
    """`python -m atom.entrypoints.openai_server` for a cell. Hyphens and underscores are ATOM's own mix."""
    out = [*(spec.program.split() or ["python", "-m", "atom.entrypoints.openai_server"]), "--model", model]
    out += ["--served-model-name", name, "-tp", str(spec.tp), "--host", spec.host, "--server-port", str(spec.port)]
    out += ["--gpu-memory-utilization", f"{spec.memory_share:g}", "--max-num-seqs", str(cell.engine.max_batch)]
    if spec.max_model_len:
        out += ["--max-model-len", str(spec.max_model_len)]
    out.append("--enable_prefix_caching" if cell.engine.prefix_cache else "--no-enable_prefix_caching")
    if spec.graph_sizes:
        out += ["--cudagraph-capture-sizes", "[" + ",".join(map(str, spec.graph_sizes)) + "]"]
    if spec.remote_code:
        out.append("--trust-remote-code")
    if cell.k:
        out += ["--method", method, "--num-speculative-tokens", str(cell.k)]
        if spec.draft_model:
            out += ["--draft-model", spec.draft_model]
    return out


KV = ("bf16", "fp8")  # values of --kv_cache_dtype in the public tree
INDEX = ("bf16", "fp8", "fp4")
WEIGHTS = ("ptpc_fp8", "mxfp8", "mxfp4")  # formats of --online_quant_config that a quant mode can name
# what the published MiniMax-M3.1-Flash recipe leaves as it was loaded
EXCLUDED = ("lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp",
            "*block_sparse_moe")  # fmt: skip
INTERVAL = "ATOM_PREFILL_DECODE_INTERVAL"


def asked(cell: Cell) -> Asked:
    """A quant mode family by family: KV and index caches, and weights quantised after loading; the prefill delayer's
    interval is a variable."""
    mode = QuantMode.parse(cell.quant, AUTO)
    out: list[str] = []
    unknown: dict[str, str] = {}
    for option, name, value, known in (
        ("--kv_cache_dtype", "kv", mode.kv, KV), ("--index-cache-dtype", "index", mode.index, INDEX),
    ):  # fmt: skip
        if value in known:
            out += [option, value]
        elif value != AUTO:
            unknown[f"{name}={value}"] = option
    if mode.kv_layers or (mode.kv_dense, mode.kv_draft) != (AUTO, AUTO):
        unknown["KV formats of single layers"] = "--kv_cache_dtype"
    if config := cell.engine.online_quant_config:
        out += ["--online_quant_config", config]
    elif mode.w in WEIGHTS:
        values = {"global_quant_config": mode.w, "exclude_layer": list(EXCLUDED)}
        out += ["--online_quant_config", json.dumps(values)]
    elif mode.w not in (AUTO, "bf16"):
        unknown[f"w={mode.w}"] = "--online_quant_config"
    interval = cell.engine.prefill_decode_interval
    return Asked(options=tuple(out), variables={INTERVAL: str(interval)} if interval else {}, unknown=unknown)


def setting(flags: Mapping[str, str]) -> dict[str, str]:
    """K, method and format of the KV cache, where a page tells them."""
    out = {"k": flags["num_speculative_tokens"]} if "num_speculative_tokens" in flags else {}
    if flags.get("method") in PROFILE.methods:
        out["method"] = flags["method"]
    if (kv := flags.get("kv_cache_dtype")) in KV:
        out["kv"] = kv
    if (index := flags.get("index_cache_dtype")) in INDEX:
        out["index"] = index
    return out


PROFILE = Profile(
    name="atom",
    launch=launch,
    methods=("dspark", "eagle3", "mtp"),
    page=PageMap(
        accepted="atom:mtp_accepted_tokens_total",
        drafts="atom:mtp_draft_tokens_total",
        positions="atom:mtp_decode_steps_total",
        position_label="accepted_tokens",
        position_kind=HISTOGRAM,
        requests="atom:requests_finished_total",
        prompt_tokens="atom:prompt_tokens_total",
        output_tokens="atom:generation_tokens_total",
        refreshed="atom:metrics_last_refresh_timestamp_seconds",
        available="atom:metrics_snapshot_available",
    ),
    json_page="/debug/mtp_stats",
    asked=asked,
    quant_options=(
        "--kv_cache_dtype",
        "--kv-cache-dtype",
        "--index-cache-dtype",
        "--index_cache_dtype",
        "--online_quant_config",
    ),
    forcing=("--spec-decode-acceptance-length", "--spec-decode-acceptance-rate"),
    variables=("ATOM_", "AITER_"),
    setting=setting,
    settings=(
        "tensor_parallel_size",
        "kv_cache_dtype",
        "index_cache_dtype",
        "max_model_len",
        "max_num_seqs",
        "enforce_eager",
        "method",
        "num_speculative_tokens",
        "draft_model",
        "enable_prefix_caching",
        "online_quant_config",
        "level",
    ),
    missing=("acceptance of single requests",),
    notes=(
        "ATOM was started by flags taken from its public tree: how a newer one spells NVFP4 KV, FP4 index or the class "
        "of its draft is not known to evalkit (--server-arg sets what it lacks)",
    ),
)
