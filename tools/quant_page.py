"""Write docs/quant.md from the formats themselves: names, bytes a value, bytes a token. `--check` compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs") / "quant.md"
INTRO = """# Quant modes

Written by `tools/quant_page.py` out of the engine's own formats (`make fix` brings it up to date).

A mode names the storage format of each tensor family: weights `w`, activations `act`, keys and values `kv`, index keys
`index`. `--quant` takes a preset, or words, or a preset and words that change it:

    evalkit run --quant nvfp4
    evalkit run --quant "w=ptpc_fp8 kv=nvfp4 index=fp4"
    evalkit run --quant "nvfp4 kv[0-2]=fp8 kv[draft]=fp8"

What is not named: activations follow the weights, the index follows the keys and values (fp8: fp8, nvfp4: fp4), all
else is in the compute dtype, float32 on a CPU and bf16 on an accelerator.
"""

UNKNOWN = """## What public sources leave open

Each is a word with a default, kept in the run's record.

| word | default | why |
|---|---|---|
| `kv[dense]=` | fp8 beside sparse layers in nvfp4, else as `kv` | as TensorRT-LLM's hybrid; ATOM's is not public |
| `kv[draft]=` | the compute dtype | the draft's format in that mode is not public |
| `kv[3]=`, `kv[0-2]=` | as `kv` | for any other hybrid |
| `index_fp4=nv` or `mx` | nv | two layouts are public; nv has the size that deployment notes give |
| `kv_scale=` | 1 | global scale (decode side) of nvfp4 keys and values; public cache records carry none |
| `mxfp4_scale=` | even | ATOM's online rule; also down, ceil, up |
| `mxfp8_scale=` | down | the OCP default; ATOM's rule was not found |
| `act=` of `w=mxfp4` | not quantised | also mxfp4 or mxfp8 |
| `fp8=` | e4m3fn | e4m3fnuz for gfx942, never guessed from the device |
"""
ONLINE = """## Which layers: `--online-quant-config`

JSON, or a file that holds it, with ATOM's keys: `global_quant_config`, `layer_quant_config` (pattern to format, the
first match counts), `exclude_layer` (one pattern or a list). Layers go by the checkpoint's names, the draft's with
`draft.` in front; a packed layer answers to `qkv_proj` and to `q_proj`, `k_proj`, `v_proj`, which must agree. An
exclusion is a name, a name's beginning up to a dot, a glob, or `re:` and a regular expression. A pattern that matches
no layer is told. Two things differ from ATOM: a layer pattern without `*` is a name or its beginning, and embeddings,
`lm_head`, routers and the draft's `fc`, Markov and confidence heads are never quantised. Without this option a mode's
`w=` quantises all linear layers but those below `block_sparse_moe`, as the published recipe does. With it experts are
quantised unless they are excluded: the stacks of a layer answer to `...block_sparse_moe.experts` and to their matrices
(`experts.0.w1`), and all matrices of a stack must agree. What was stored as MXFP4 stays. A run's record has what was
done as `online_quant_info`.

Such weights are part of the setting, whatever `--quant` says: the run is `float32 online=ptpc_fp8` in its id and
wherever it is named, a certificate or a golden curve holds the configuration (`certificate check
--online-quant-config`), and a K=0 run with it is refused as a baseline. A configuration that asks for nothing (`{}`),
or that no layer matched, is none.

On a CPU the engine keeps each quantised weight decoded beside its codes, since decoding takes longer than the product;
the run's counters have it apart (`weight_bytes`, `weight_cache_bytes`).
"""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def presets() -> str:
    from engine.mode import PRESETS, QuantMode

    rows = []
    for name in PRESETS:
        mode = QuantMode.parse(name, "auto")
        band = mode.band
        beside = "" if band is None else ", ".join(
            [f"K={band.k}", f"concurrency {band.concurrency[0]} to {band.concurrency[1]}"]
            + ["Mono"] * band.mono + ["fused verify top-k"] * band.fused_verify_topk
            + ([f"prefill delayer {band.prefill_decode_interval}"] if band.prefill_decode_interval else [])
        )  # fmt: skip
        rows.append((f"`{name}`", *mode.families().values(), beside))
    note = ("`auto` is the compute dtype. The last column is what a band of the published recipe asks for beside its "
            "formats; a run says which of it the engine did not serve.")  # fmt: skip
    return "\n\n".join(["## Presets", table(("preset", "w", "act", "kv", "index", "beside"), rows), note])


def cached() -> str:
    from engine.quant import FORMATS, INDEX_FORMATS

    rows = []
    for family, formats in (("kv", FORMATS), ("index", INDEX_FORMATS)):
        for name, fmt in formats.items():
            size, scales = fmt.bytes_per_vector(128), fmt.scale_bytes(128)
            rows.append((family, f"`{name}`", size - scales, scales, size, f"{size / 128:g}", f"{256 / size:.2f}"))
    head = ("family", "format", "codes", "scales", "total", "bytes a value", "times smaller than bf16")
    return "\n\n".join(["## A cached vector of 128 values, in bytes", table(head, rows)])


def weights() -> str:
    import torch

    from engine.quant import ACTIVATIONS, WEIGHT_FORMATS, WeightOptions

    rows = []
    for name, fmt in WEIGHT_FORMATS.items():
        codes, scales = fmt.encode(torch.zeros(1024, 1024), WeightOptions())
        acts = ", ".join(ACTIVATIONS[name])
        rows.append((f"`{name}`", codes.nbytes, scales.nbytes, f"{(codes.nbytes + scales.nbytes) / 2**20:.4f}", acts))
    head = ("format", "codes", "scales", "bytes a value", "quantised activations")
    return "\n\n".join(["## A weight of 1024 x 1024, in bytes", table(head, rows)])


def tokens() -> str:
    from engine.checkpoint_config import load_model_config
    from engine.dspark_config import load_draft_config
    from engine.mode import QuantMode
    from engine.quant.sizes import M3, M31, CacheShape, draft_bytes, token_bytes

    rows = []
    for label, shape in (("MiniMax-M3.1 (60 sparse layers)", M31), ("MiniMax-M3 (57 sparse)", M3)):
        for words in ("bf16", "fp8", "nvfp4", "nvfp4 index_fp4=mx"):
            for tp in (1, 4):
                b = token_bytes(QuantMode.parse(words, "bf16"), shape, tp=tp)
                rows.append((label, f"`{words}`", tp, f"{b.kv:,}", f"{b.scales:,}", f"{b.index:,}", f"{b.total:,}"))
    for tp in (1, 4):
        b = draft_bytes(QuantMode.parse("nvfp4", "bf16"), layers=5, kv_heads=4, head_dim=128, tp=tp)
        rows.append(("DSpark draft, 5 layers", "bf16", tp, f"{b.kv:,}", b.scales, b.index, f"{b.total:,}"))
    reference = ROOT / "engine" / "reference"
    target, draft = load_model_config(reference / "target"), load_draft_config(reference / "draft").model
    sparse = target.sparse
    shape = CacheShape(
        kv_heads=target.num_kv_heads, head_dim=target.head_dim,
        sparse=tuple(sparse.layers) if sparse else (False,) * target.num_layers,
        picks=tuple(sparse.computes) if sparse else (), index_dim=sparse.index_dim if sparse else 0,
    )  # fmt: skip
    for words in ("float32", "bf16", "fp8", "nvfp4"):
        mode = QuantMode.parse(words, "float32")
        d = draft_bytes(mode, layers=draft.num_layers, kv_heads=draft.num_kv_heads, head_dim=draft.head_dim)
        b = token_bytes(mode, shape)
        rows.append(("embedded model", f"`{words}`", 1, f"{b.kv:,}", f"{b.scales:,}", f"{b.index:,}", f"{b.total:,}"))
        rows.append(("its draft", f"`{words}`", 1, f"{d.kv:,}", f"{d.scales:,}", f"{d.index:,}", f"{d.total:,}"))
    head = ("model", "mode", "ranks", "keys and values", "scales", "index", "bytes a token and rank")
    note = "KV heads are split over the ranks, the index key is whole on each. The draft's layers come on top."
    return "\n\n".join(["## A token in the caches, in bytes", table(head, rows), note])


def page() -> str:
    return (
        "\n\n".join([INTRO.strip(), presets(), UNKNOWN.strip(), ONLINE.strip(), cached(), weights(), tokens()]) + "\n"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="docs/quant.md")
    parser.add_argument("--check", action="store_true", help="exit 1 where the page is stale, change nothing")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    path, new = ROOT / PAGE, page()
    if path.exists() and path.read_text(encoding="utf-8") == new:
        return 0
    if args.check:
        print(f"{PAGE} is stale; fix: make fix", file=sys.stderr)
        return 1
    path.write_text(new, encoding="utf-8")
    print(f"{PAGE}: brought up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
