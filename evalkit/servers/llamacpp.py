"""llama.cpp's llama-server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalkit.servers.profile import Profile
from evalkit.servers.prometheus import PageMap
from evalkit.servers.spec import ServerSpec

if TYPE_CHECKING:
    from evalkit.config import Cell

METHODS = {"ngram": "ngram-simple", "draft_model": "draft-simple", "dspark": "draft-dspark"}
CACHES = {"float32": "f32", "bf16": "bf16"}


def launch(cell: Cell, spec: ServerSpec, *, model: str, name: str, method: str) -> list[str]:
    """`llama-server -m GGUF`. Its weights keep the GGUF's own format: only the KV cache is set."""
    out = [*(spec.program.split() or ["llama-server"]), "-m", model, "--alias", name]
    out += ["--host", spec.host, "--port", str(spec.port), "-np", str(cell.engine.max_batch), "--metrics", "--no-webui"]
    if spec.max_model_len:
        out += ["-c", str(spec.max_model_len * cell.engine.max_batch)]
    if cell.engine.threads:
        out += ["-t", str(cell.engine.threads)]
    if not cell.engine.prefix_cache:
        out.append("--no-cache-prompt")
    if cell.k:
        out += ["--spec-type", METHODS[method]]
        if method == "ngram":
            out += ["--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", str(cell.k)]
        else:
            out += ["--spec-draft-model", spec.draft_model, "--spec-draft-n-max", str(cell.k)]
            out += ["--spec-draft-p-min", "0"]  # K drafts a step, however sure the draft is
            if cell.quant in CACHES:
                out += ["--spec-draft-type-k", CACHES[cell.quant], "--spec-draft-type-v", CACHES[cell.quant]]
    return out


PROFILE = Profile(
    name="llamacpp",
    launch=launch,
    methods=tuple(METHODS),
    max_k=32,
    page=PageMap(
        steps="llamacpp:spec_decode_num_drafts_total",
        accepted="llamacpp:spec_decode_num_accepted_tokens_total",
        drafts="llamacpp:spec_decode_num_draft_tokens_total",
        positions="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
        prompt_tokens="llamacpp:prompt_tokens_total",
        output_tokens="llamacpp:tokens_predicted_total",
    ),
    quant={quant: ("-ctk", cache, "-ctv", cache) for quant, cache in CACHES.items()},
    quant_options=("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"),
    per_request="timings.draft_n and timings.draft_n_accepted (no number of steps)",
    always_drafts=False,
    variables=("LLAMA_ARG_", "GGML_"),
    settings=("model_path", "total_slots", "n_ctx", "n_params", "size"),
    forcing=(
        "--spec-synth-len",
        "--spec-synth-rates",
        "LLAMA_ARG_SPEC_SYNTH_LEN",
        "LLAMA_ARG_SPEC_SYNTH_RATES",
    ),
    missing=("number of steps by request",),
)
