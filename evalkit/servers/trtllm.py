"""TensorRT-LLM (trtllm-serve). Speculation and statistics are options of its YAML, which is written for the cell."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.servers.profile import Profile
from evalkit.servers.spec import ServerSpec

if TYPE_CHECKING:
    from evalkit.config import Cell

METHODS = {"eagle3": "Eagle", "mtp": "MTP", "ngram": "NGram", "draft_model": "DraftTarget"}


def options(cell: Cell, spec: ServerSpec, method: str) -> dict[str, Any]:
    """What goes into the extra options file (JSON is YAML)."""
    cache: dict[str, Any] = {"enable_block_reuse": cell.engine.prefix_cache}
    cache["free_gpu_memory_fraction"] = spec.memory_share
    if cell.quant == "fp8":
        cache["dtype"] = "fp8"
    out: dict[str, Any] = {"enable_iter_perf_stats": True, "kv_cache_config": cache}
    if spec.graph_sizes:
        out["cuda_graph_config"] = {"batch_sizes": list(spec.graph_sizes)}
    if cell.k:
        length = "num_nextn_predict_layers" if method == "mtp" else "max_draft_len"
        out["speculative_config"] = {"decoding_type": METHODS[method], length: cell.k}
        if spec.draft_model:
            out["speculative_config"]["speculative_model_dir"] = spec.draft_model
    return out


def launch(cell: Cell, spec: ServerSpec, *, model: str, name: str, method: str) -> list[str]:
    """`trtllm-serve MODEL`, with its options in a file."""
    path = Path(tempfile.mkdtemp(prefix="evalkit-trtllm-")) / "options.yaml"
    path.write_text(json.dumps(options(cell, spec, method), indent=1), encoding="utf-8")
    out = [*(spec.program.split() or ["trtllm-serve"]), model, "--host", spec.host, "--port", str(spec.port)]
    out += ["--tp_size", str(spec.tp), "--max_batch_size", str(cell.engine.max_batch)]
    if spec.max_model_len:
        out += ["--max_seq_len", str(spec.max_model_len)]
    if spec.remote_code:
        out.append("--trust_remote_code")
    return [*out, "--extra_llm_api_options", str(path)]


PROFILE = Profile(
    name="trtllm",
    launch=launch,
    methods=tuple(METHODS),
    json_page="/metrics",
    quant={"bf16": (), "fp8": ()},
    quant_options=("--kv_cache_dtype",),
    forcing=("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS",),
    variables=("TRTLLM_", "TLLM_"),
    missing=("acceptance of single requests", "counts by position", "whether drafts past a stop are counted"),
    notes=("the options file of trtllm-serve differs by version; what it names is from its public documents",),
)
