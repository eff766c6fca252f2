"""Quantised checkpoints, written as each method writes them, against the numbers that their codes stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import LLM, EngineConfig
from engine.errors import EngineError
from engine.quant import (
    decode_mxfp4,
    decode_mxfp8,
    decode_nvfp4,
    encode_fp8,
    encode_mxfp4,
    encode_mxfp8,
    encode_nvfp4,
    encode_tiles,
    nvfp4_global_scale,
)
from engine.quant.stored import StoredQuant
from engine.shard import Share
from engine.weights import load_target
from tests.engine.checkpoints import copy, part_of
from tests.engine.tiny import Tiny, build

Stored = tuple[dict[str, Tensor], Tensor]  # leaves beside X, and the matrix they stand for


def rows(w: Tensor) -> Stored:
    codes, scales = encode_fp8(w)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def matrix(w: Tensor) -> Stored:
    scale = w.abs().max() / 448
    codes = (w / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.ones(())}, codes.float() * scale


def tiles(w: Tensor) -> Stored:
    codes, scales = encode_tiles(w)
    factor = scales.repeat_interleave(128, 0)[: w.shape[0]].repeat_interleave(128, 1)[:, : w.shape[1]]
    return {"weight": codes, "weight_scale_inv": scales}, codes.float() * factor


def mxfp8(w: Tensor) -> Stored:
    codes, scales = encode_mxfp8(w)
    return {"weight": codes, "weight_scale_inv": scales}, decode_mxfp8(codes, scales)


def mxfp4(w: Tensor) -> Stored:
    codes, scales = encode_mxfp4(w)
    return {"weight": codes, "weight_scale": scales}, decode_mxfp4(codes, scales)


def nvfp4(w: Tensor, *, packed: bool = False) -> Stored:
    enc, scale = nvfp4_global_scale(w)
    codes, scales = encode_nvfp4(w, global_scale_enc=enc)
    want, scales = decode_nvfp4(codes, scales, global_scale_dec=scale), scales.view(torch.float8_e4m3fn)
    if packed:  # compressed-tensors keeps the inverse
        return {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": torch.tensor([enc])}, want
    return {"weight": codes, "weight_scale": scales, "weight_scale_2": torch.tensor(scale)}, want


def packed_nvfp4(w: Tensor) -> Stored:
    return nvfp4(w, packed=True)


CASES: list[tuple[dict[str, Any], Callable[[Tensor], Stored]]] = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, tiles),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, rows),
    ({"quant_method": "fp8", "activation_scheme": "static"}, matrix),
    ({"quant_method": "fp8", "weight_block_size": [1, 32]}, mxfp8),
    ({"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["lm_head"]}, mxfp8),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}, mxfp4),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4),
    ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, packed_nvfp4),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"format": "float-quantized"}}}, rows),
]


def is_matrix(name: str, t: Tensor) -> bool:
    return t.ndim == 2 and "embed" not in name and "lm_head" not in name and ".gate." not in name


def quantised(
    source: Path, folder: Path, config: dict[str, Any], store: Callable[[Tensor], Stored], only: str = ""
) -> tuple[Path, Path]:
    """The checkpoint quantised, and the plain one with the same numbers."""
    wants: dict[str, Tensor] = {}

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for name, t in tensors.items():
            if not is_matrix(name, t) or only not in name:
                out[name] = wants[name] = t
                continue
            leaves, wants[name] = store(t)
            base = name.removesuffix(".weight")
            out |= {f"{base}.{leaf}": x.contiguous() for leaf, x in leaves.items()}
        return out

    codes = copy(source, folder / "codes", change, config=lambda c: c | {"quantization_config": config}, shards=2)
    return codes, copy(source, folder / "plain", lambda _: wants)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose matrices have widths of whole blocks of 32."""
    return build(tmp_path_factory.mktemp("wide"), dense_intermediate_size=64, intermediate_size=32).target


@pytest.mark.parametrize(("config", "store"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_codes_load_as_the_numbers_they_stand_for(
    wide: Path, tmp_path: Path, config: dict[str, Any], store: Callable[[Tensor], Stored]
) -> None:
    codes, plain = quantised(wide, tmp_path, config, store)
    got, want = load_target(codes), dict(load_target(plain).named_parameters())
    for name, p in got.named_parameters():
        torch.testing.assert_close(p, want[name], rtol=1e-6, atol=1e-9)
    assert "model.layers.0.self_attn.q_proj" in got.stored
    assert not any(n.endswith(("lm_head", "norm", "mlp.gate")) for n in got.stored)


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose parts at tp=4 begin and end inside the blocks that share a scale: 96 of 128, 16 of 32 places."""
    folder = tmp_path_factory.mktemp("shared_out")
    return build(folder, heads=(8, 4), dense_intermediate_size=384, intermediate_size=64).target


@pytest.mark.parametrize(("config", "store"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_a_rank_decodes_its_part_to_the_same_numbers(
    shared_out: Path, tmp_path: Path, config: dict[str, Any], store: Callable[[Tensor], Stored]
) -> None:
    codes, _ = quantised(shared_out, tmp_path, config, store)
    whole = load_target(codes)
    wanted = dict(whole.named_parameters())
    for rank in range(4):
        part = load_target(codes, share=Share(rank=rank, size=4))
        for name, p in part.named_parameters():
            assert torch.equal(p, part_of(name, wanted[name], whole.cfg, rank, 4)), name
        assert part.stored == whole.stored


def test_experts_in_a_format_of_their_own(wide: Path, tmp_path: Path) -> None:
    """MiniMax-M3.1: mxfp8, and routed experts in nvfp4."""
    config = {"quant_method": "mxfp8", "moe_quant_algo": "NVFP4", "moe_quant_format": "nvfp4-pack-quantized"}
    first, _ = quantised(wide, tmp_path / "experts", config, packed_nvfp4, ".experts.")
    both, _ = quantised(wide, tmp_path / "both", config, mxfp8, "self_attn")
    assert set(load_target(first).stored.values()) == {"nvfp4"}
    assert set(load_target(both).stored.values()) == {"mxfp8"}


def test_mxfp4_sources_are_not_quantised_again(wide: Path, tmp_path: Path) -> None:
    config = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}
    codes, _ = quantised(wide, tmp_path, config, mxfp4, "self_attn")
    llm = LLM(EngineConfig(model=codes, threads=1, device="cpu", page_size=4, quant="w=ptpc_fp8"))
    done = {layer["layer"] for layer in llm.online_quant.info["layers"]}
    assert "model.layers.0.mlp.gate_up_proj" in done and not any("self_attn" in name for name in done)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {"quant_method": "mxfp8", "moe_quant_algo": "INT4"},
        {"bits": 4},
    ],
)
def test_an_unknown_method_is_refused(tiny: Tiny, tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"is quantised as .*; fix: use a checkpoint in fp8"):
        StoredQuant.of({"quantization_config": config}, tmp_path)


def test_codes_and_scales_that_do_not_belong_together(wide: Path, tmp_path: Path) -> None:
    config = {"quant_method": "mxfp8"}
    with pytest.raises(EngineError, match=r"has scales of shape \[32, 1\], not"):
        load_target(quantised(wide, tmp_path / "a", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, mxfp4)[0])
    with pytest.raises(EngineError, match=r"weight_packed has no scales"):
        load_target(quantised(wide, tmp_path / "b", config, lambda w: ({"weight_packed": mxfp4(w)[0]["weight"]}, w))[0])
    with pytest.raises(EngineError, match="in two forms; fix: keep one"):
        load_target(quantised(wide, tmp_path / "c", config, lambda w: (mxfp8(w)[0] | {"weight_packed": w}, w))[0])
    plain = copy(
        wide, tmp_path / "d", lambda t: t | {"model.layers.0.self_attn.q_proj.weight_scale": torch.ones(32, 1)}
    )
    with pytest.raises(EngineError, match=r"holds the tensor .*q_proj\.weight_scale, which"):
        load_target(plain)  # scales, and a config.json without a word about them
