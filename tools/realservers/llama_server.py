"""llama.cpp's own HTTP server, out of the xllamacpp wheel: what `llama-server` is where there is no such program.

python tools/llama_server.py --library FOLDER --model GGUF --name NAME --port PORT [--k K [--draft GGUF]]
"""

from __future__ import annotations

import argparse
import sys
import threading


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--k", type=int, default=0)
    parser.add_argument("--draft", default="", help="a DSpark draft; without one, n-grams of the text")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048, help="tokens of one slot")
    args = parser.parse_args()
    sys.path.insert(0, args.library)
    import xllamacpp as x  # pyright: ignore[reportMissingImports]

    p = x.CommonParams()
    p.model.path = args.model
    p.model_alias = {args.name}
    p.hostnames, p.port = ["127.0.0.1"], args.port
    p.n_parallel, p.n_ctx = args.slots, args.slots * args.context
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.endpoint_metrics, p.ui = True, False
    if args.k and args.draft:
        p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK]
        draft = p.speculative.draft
        draft.mparams.path, draft.n_max, draft.n_min, draft.p_min = args.draft, args.k, 0, 0.0
        draft.cache_type_k = draft.cache_type_v = x.ggml_type.GGML_TYPE_F32
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
    elif args.k:
        p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        p.speculative.ngram_simple.size_n, p.speculative.ngram_simple.size_m = 3, args.k
    server = x.Server(p)
    print(f"listening on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
