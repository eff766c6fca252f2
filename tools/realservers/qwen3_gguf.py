"""A Qwen3 checkpoint, and a DSpark draft of it, as GGUF in float32: what llama.cpp reads.

Names are those of llama.cpp's `qwen3` and `dflash` architectures; a `dflash` file with Markov weights is a DSpark
draft. llama.cpp captures a layer's input where the checkpoint names the layer whose output is captured: one more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOP = {
    "embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight", "norm.weight": "output_norm.weight",
    "fc.weight": "fc.weight", "hidden_norm.weight": "enc.output_norm.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight", "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight", "confidence_head.proj.bias": "conf_proj.bias",
}  # fmt: skip
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
NORMAL, CONTROL = 1, 3  # token types


def name_of(weight: str) -> str:
    """GGUF's name of a weight. Raises KeyError for one that is not of these architectures."""
    short = weight.removeprefix("model.")
    if not short.startswith("layers."):
        return TOP[short]
    _, layer, rest = short.split(".", 2)
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


def convert(folder: Path, out: Path, *, tokenizer: Path, pre: str) -> None:
    """Writes the checkpoint in `folder`, with the vocabulary of a tokenizer.json and llama.cpp's name of its splitting.

    The `gguf` package must be importable.
    """
    from gguf import GGUFWriter  # pyright: ignore[reportMissingImports]
    from safetensors.numpy import load_file

    raw = json.loads((folder / "config.json").read_text())
    draft = "dspark" in raw["architectures"][0].lower()
    arch = "dflash" if draft else "qwen3"
    writer = GGUFWriter(out, arch)
    numbers = {
        "block_count": raw["num_hidden_layers"], "context_length": raw["max_position_embeddings"],
        "embedding_length": raw["hidden_size"], "feed_forward_length": raw["intermediate_size"],
        "attention.head_count": raw["num_attention_heads"], "attention.head_count_kv": raw["num_key_value_heads"],
        "attention.key_length": raw["head_dim"], "attention.value_length": raw["head_dim"],
    }  # fmt: skip
    if draft:
        numbers["block_size"] = raw["block_size"]
    for name, value in numbers.items():
        writer.add_uint32(f"{arch}.{name}", value)
    theta = raw["rope_theta"] if "rope_theta" in raw else raw["rope_parameters"]["rope_theta"]
    writer.add_float32(f"{arch}.rope.freq_base", theta)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", raw["rms_norm_eps"])
    if draft:
        writer.add_array(f"{arch}.target_layers", [i + 1 for i in raw["target_layer_ids"]])
        writer.add_bool(f"{arch}.sample_from_anchor", True)
        writer.add_bool(f"{arch}.attention.causal", False)
        writer.add_uint32("tokenizer.ggml.mask_token_id", raw["mask_token_id"])
    _vocabulary(writer, json.loads(tokenizer.read_text()), size=raw["vocab_size"], pre=pre, eos=raw["eos_token_id"])
    for name, values in load_file(folder / "model.safetensors").items():
        writer.add_tensor(name_of(name), values.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocabulary(writer: Any, raw: dict[str, Any], *, size: int, pre: str, eos: int) -> None:
    """Tokens by id, merges and special tokens of a byte-level BPE tokenizer."""
    by_id = {i: t for t, i in raw["model"]["vocab"].items()}
    special = {t["id"]: t["content"] for t in raw["added_tokens"]}
    by_id |= special
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", pre)
    writer.add_token_list([by_id.get(i, f"[unused{i}]") for i in range(size)])
    writer.add_token_types([CONTROL if i in special else NORMAL for i in range(size)])
    merges = raw["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_uint32("tokenizer.ggml.eos_token_id", eos)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
