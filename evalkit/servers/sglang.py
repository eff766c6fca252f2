"""SGLang. Acceptance comes with each reply's meta_info; its server-wide numbers are lifetime means by rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evalkit.servers.profile import Profile
from evalkit.servers.spec import ServerSpec

if TYPE_CHECKING:
    from evalkit.config import Cell

METHODS = {"dspark": "DSPARK", "eagle3": "EAGLE3", "mtp": "NEXTN", "ngram": "NGRAM"}


def launch(cell: Cell, spec: ServerSpec, *, model: str, name: str, method: str) -> list[str]:
    """`python -m sglang.launch_server`. Its draft tokens count the target's own: K + 1."""
    out = [*(spec.program.split() or ["python", "-m", "sglang.launch_server"]), "--model-path", model]
    out += ["--served-model-name", name, "--host", spec.host, "--port", str(spec.port), "--tp-size", str(spec.tp)]
    out += ["--mem-fraction-static", f"{spec.memory_share:g}", "--max-running-requests", str(cell.engine.max_batch)]
    out += ["--enable-metrics", "--random-seed", str(cell.seed)]
    if spec.max_model_len:
        out += ["--context-length", str(spec.max_model_len)]
    if not cell.engine.prefix_cache:
        out.append("--disable-radix-cache")
    if spec.graph_sizes:
        out += ["--cuda-graph-bs", *map(str, spec.graph_sizes)]
    if spec.remote_code:
        out.append("--trust-remote-code")
    if cell.k:
        out += ["--speculative-algorithm", METHODS[method], "--speculative-num-draft-tokens", str(cell.k + 1)]
        if method in ("eagle3", "mtp"):
            out += ["--speculative-num-steps", str(cell.k), "--speculative-eagle-topk", "1"]
        if spec.draft_model:
            out += ["--speculative-draft-model-path", spec.draft_model]
    return out


def setting(flags: Mapping[str, str]) -> dict[str, str]:
    """K, method and format of the KV cache, where /server_info tells them. A tree of drafts has no K."""
    out = {}
    methods = {word: method for method, word in METHODS.items()}
    tokens = flags.get("speculative_num_draft_tokens", "")
    if method := methods.get(flags.get("speculative_algorithm", "").upper()):
        out["method"] = method
        if tokens.isdecimal() and flags.get("speculative_eagle_topk", "1") == "1":
            out["k"] = str(int(tokens) - 1)  # they count the target's own
    if flags.get("kv_cache_dtype", "").startswith("fp8"):
        out["kv"] = "fp8"
    return out


PROFILE = Profile(
    name="sglang",
    endpoint="generate",
    endpoints=("generate", "completions", "chat"),
    launch=launch,
    methods=tuple(METHODS),
    json_page="/server_info",
    quant={
        "float32": ("--dtype", "float32"),
        "bf16": ("--dtype", "bfloat16"),
        "fp8": ("--kv-cache-dtype", "fp8_e4m3"),
    },
    quant_options=("--kv-cache-dtype", "--dtype", "--quantization"),
    forcing=("SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD", "SGLANG_SIMULATE_ACC_TOKEN_MODE"),
    variables=("SGLANG_", "SGL_"),
    setting=setting,
    settings=(
        "dtype",
        "quantization",
        "kv_cache_dtype",
        "tp_size",
        "dp_size",
        "ep_size",
        "attention_backend",
        "sampling_backend",
        "moe_runner_backend",
        "context_length",
        "max_running_requests",
        "disable_radix_cache",
        "disable_cuda_graph",
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "revision",
        "chunked_prefill_size",
    ),
    per_request="meta_info of /generate (spec_verify_ct, and a histogram or ordered lengths in newer versions)",
    missing=("counters over all ranks",),
    notes=("SGLang's names for --speculative-algorithm differ by version; --server-arg overrides",),
)
