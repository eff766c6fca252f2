"""vLLM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from evalkit.servers.profile import Profile
from evalkit.servers.prometheus import PageMap
from evalkit.servers.spec import ServerSpec

if TYPE_CHECKING:
    from evalkit.config import Cell

PAGE = PageMap(
    steps="vllm:spec_decode_num_drafts_total",
    accepted="vllm:spec_decode_num_accepted_tokens_total",
    drafts="vllm:spec_decode_num_draft_tokens_total",
    positions="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    requests="vllm:request_success_total",
    prompt_tokens="vllm:prompt_tokens_total",
    output_tokens="vllm:generation_tokens_total",
)


def launch(cell: Cell, spec: ServerSpec, *, model: str, name: str, method: str) -> list[str]:
    """The module is started, not the `vllm` command, which is not in every build."""
    out = [*(spec.program.split() or ["python", "-m", "vllm.entrypoints.openai.api_server"]), "--model", model]
    out += ["--served-model-name", name, "--host", spec.host, "--port", str(spec.port)]
    out += ["--tensor-parallel-size", str(spec.tp), "--gpu-memory-utilization", f"{spec.memory_share:g}"]
    out += ["--max-num-seqs", str(cell.engine.max_batch), "--seed", str(cell.seed)]
    if spec.max_model_len:
        out += ["--max-model-len", str(spec.max_model_len)]
    out.append("--enable-prefix-caching" if cell.engine.prefix_cache else "--no-enable-prefix-caching")
    if spec.graph_sizes:
        out += ["--cudagraph-capture-sizes", *map(str, spec.graph_sizes)]
    if spec.remote_code:
        out.append("--trust-remote-code")
    if cell.k:
        out += ["--speculative-config", json.dumps(_speculative(cell, spec, method))]
    return out


def _speculative(cell: Cell, spec: ServerSpec, method: str) -> dict[str, Any]:
    out: dict[str, Any] = {"method": method, "num_speculative_tokens": cell.k}
    if method == "ngram":
        return out | {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return out | ({"model": spec.draft_model} if spec.draft_model else {})


PROFILE = Profile(
    name="vllm",
    launch=launch,
    methods=("dspark", "eagle3", "mtp", "ngram", "draft_model"),
    max_k=32,
    page=PAGE,
    quant={
        "float32": ("--dtype", "float32"),
        "bf16": ("--dtype", "bfloat16"),
        "fp8": ("--kv-cache-dtype", "fp8"),
    },
    quant_options=("--kv-cache-dtype", "--dtype", "--quantization"),
    forcing=("synthetic_acceptance_length", "synthetic_acceptance_rates", '"synthetic"'),
    variables=("VLLM_",),
    per_request="speculative_decoding_stats of a choice, or metrics.speculative_decoding of a reply, "
    "where the server was started to give them",
    missing=("steps without a draft",),
)
