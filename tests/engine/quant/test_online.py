"""online_quant_config: who matches, who wins, what stays, what is told."""

from __future__ import annotations

import json

import pytest

from engine.errors import EngineError
from engine.quant.online import LayerName, OnlineQuantConfig, excludes, names_layer, resolve, warnings

ATTN = "model.layers.0.self_attn"


def layer(path: str, *parts: str, name: str = "") -> LayerName:
    return LayerName(path=path, name=name or parts[0], parts=parts)


QKV = layer("layers.0.attn.qkv", *(f"{ATTN}.{p}_proj" for p in "qkv"), name=f"{ATTN}.qkv_proj")
O = layer("layers.0.attn.o", f"{ATTN}.o_proj")  # noqa: E741
DOWN = layer("layers.0.mlp.down", "model.layers.0.mlp.down_proj")
EXPERT = layer("layers.3.moe.e0", "model.layers.3.block_sparse_moe.experts.0.w1")
ROUTER = layer("layers.3.moe.gate", "model.layers.3.block_sparse_moe.gate")
HEAD = layer("head", "lm_head")
TARGET = (QKV, O, DOWN, EXPERT, ROUTER, HEAD)
DRAFT = (
    layer("fc", "draft.fc"),
    layer("layers.0.attn.o", "draft.layers.0.self_attn.o_proj"),
    layer("markov_out", "draft.markov_head.markov_w2"),
    layer("confidence", "draft.confidence_head.proj"),
)


def config(**words: object) -> OnlineQuantConfig:
    names = {"whole": "global_quant_config", "layers": "layer_quant_config", "exclude": "exclude_layer"}
    return OnlineQuantConfig.parse(json.dumps({names[k]: v for k, v in words.items()}))


@pytest.mark.parametrize(("pattern", "name", "want"), [
    ("a.b", "a.b", True), ("a.b", "a.b.c", True), ("a.b", "a.bc", False), ("a.b", "x.a.b", False),
    ("*moe", "model.layers.3.block_sparse_moe.experts.0.w1", True), ("*moe", "model.moe_x", False),
    ("model.*.mlp", "model.layers.0.mlp.down_proj", True), ("re:.*o_proj", f"{ATTN}.o_proj", True),
    ("re:o_proj", f"{ATTN}.o_proj", False), ("re:model", "model.x", True), ("MODEL.*", "model.x", False),
])  # fmt: skip
def test_forms_of_an_exclusion(pattern, name, want):
    assert excludes(pattern, name) is want


@pytest.mark.parametrize(("pattern", "name", "want"), [
    ("*.mlp.*", "model.layers.0.mlp.down_proj", True), ("model.layers.0", "model.layers.0.mlp.down_proj", True),
    ("model.layers.0.mlp.down_proj.extra", "model.layers.0.mlp.down_proj", False),  # ATOM's reversed test says yes
    ("layers.0", "model.layers.0.mlp.down_proj", False), ("*moe", "model.block_sparse_moe.w1", False),
])  # fmt: skip
def test_forms_of_a_layer_pattern(pattern, name, want):
    assert names_layer(pattern, name) is want


def test_the_recipe_quantises_attention_and_dense_mlps():
    exclude = ["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp",
               "*block_sparse_moe"]  # fmt: skip
    asked = config(whole="PTPC_FP8", exclude=exclude)
    found, draft = resolve(asked, TARGET), resolve(asked, DRAFT)
    assert found.formats == dict.fromkeys(("layers.0.attn.qkv", "layers.0.attn.o", "layers.0.mlp.down"), "ptpc_fp8")
    assert found.kept[EXPERT.name] == "excluded by *block_sparse_moe"
    assert draft.formats == {"layers.0.attn.o": "ptpc_fp8"}
    assert draft.kept["draft.fc"] == draft.kept["draft.markov_head.markov_w2"] == "never quantised"
    (said,) = warnings(asked, found, draft)
    assert said.endswith("no layer matches model.embed_tokens, vision_tower, multi_modal_projector, patch_merge_mlp")


def test_head_and_router_stay_even_when_they_are_named():
    found = resolve(config(whole="mxfp8", layers={"lm_head": "ptpc_fp8", "*.gate": "mxfp8"}), TARGET)
    assert "head" not in found.formats and "layers.3.moe.gate" not in found.formats
    assert found.formats["layers.3.moe.e0"] == "mxfp8"


def test_exclusion_beats_layer_beats_global_and_the_first_pattern_wins():
    asked = config(whole="ptpc_fp8", layers={"*.mlp.*": "mxfp4", "model.layers.0.*": "mxfp8"}, exclude="*o_proj")
    found = resolve(asked, TARGET)
    assert found.formats == {
        "layers.0.attn.qkv": "mxfp8", "layers.0.mlp.down": "mxfp4", "layers.3.moe.e0": "ptpc_fp8"
    }  # fmt: skip
    assert found.kept[O.name] == "excluded by *o_proj"


def test_without_a_global_format_only_named_layers_are_quantised():
    found = resolve(config(layers={f"{ATTN}.o_proj": "mxfp4"}), TARGET)
    assert found.formats == {"layers.0.attn.o": "mxfp4"} and found.kept[DOWN.name] == "not named"


def test_a_packed_layer_answers_to_its_name_and_to_all_parts():
    parts = [f"{ATTN}.{p}_proj" for p in "qkv"]
    for exclude in ([QKV.name], parts, ["re:.*[qkv]_proj"]):
        assert QKV.path not in resolve(config(whole="ptpc_fp8", exclude=exclude), TARGET).formats
    with pytest.raises(EngineError, match=r"parts of .*qkv_proj differently .*q_proj: excluded by .*k_proj: ptpc_fp8"):
        resolve(config(whole="ptpc_fp8", exclude=parts[:1]), TARGET)
    with pytest.raises(EngineError, match=r"v_proj: mxfp8"):
        resolve(config(whole="ptpc_fp8", layers={parts[2]: "mxfp8"}), TARGET)


def test_a_pattern_of_target_names_does_not_leave_out_the_draft_in_silence():
    asked = config(layers={"model.layers.*": "ptpc_fp8"})
    found, draft = resolve(asked, TARGET), resolve(asked, DRAFT)
    assert found.formats and not draft.formats
    assert any("the draft is not; its layers are draft.layers.*" in said for said in warnings(asked, found, draft))
    assert resolve(config(layers={"draft.layers.*": "ptpc_fp8"}), DRAFT).formats


def test_a_source_in_mxfp4_is_not_quantised_again():
    found = resolve(config(whole="ptpc_fp8"), TARGET, {EXPERT.name: "mxfp4", O.name: "mxfp8"})
    assert found.kept[EXPERT.name] == "stored as mxfp4" and found.formats[O.path] == "ptpc_fp8"


@pytest.mark.parametrize(("text", "words"), [
    ('{"a": ' * 100_000, "is no JSON"),
    ("{", "is no JSON"), ("[]", "is a list"), ('{"global_quant": "ptpc_fp8"}', "did you mean global_quant_config"),
    ('{"global_quant_config": "ptpc_fp9"}', "did you mean ptpc_fp8"), ('{"global_quant_config": 8}', "format 8"),
    ('{"layer_quant_config": ["a"]}', "must be an object"), ('{"exclude_layer": [1]}', "a string or a list"),
    ('{"exclude_layer": "re:("}', "no regular expression"), ('{"layer_quant_config": {"a": "x"}}', "format 'x'"),
])  # fmt: skip
def test_bad_configurations_are_told_in_one_line(text, words):
    with pytest.raises(EngineError, match=words) as e:
        OnlineQuantConfig.parse(text)
    assert "\n" not in str(e.value)


def test_a_configuration_can_be_written_again():
    asked = config(whole="ptpc_fp8", layers={"b": "mxfp4", "a": "mxfp8"}, exclude=["c"])
    assert OnlineQuantConfig.parse(json.dumps(asked.to_json())) == asked
