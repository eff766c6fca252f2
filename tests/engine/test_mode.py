"""QuantMode: presets, words, one spelling, hybrids, what is refused."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.mode import PRESETS, QuantMode

WORDS = ["w=ptpc_fp8", "act=bf16", "kv=nvfp4", "index=bf16", "kv[dense]=bf16", "kv[draft]=fp8", "kv[0-1]=fp8",
         "index_fp4=mx", "kv_scale=0.125", "mxfp4_scale=up", "mxfp8_scale=even", "fp8=e4m3fnuz"]  # fmt: skip


def families(words: str, dtype: str = "float32") -> tuple[str, ...]:
    return tuple(QuantMode.parse(words, dtype).families().values())


@pytest.mark.parametrize(("words", "want"), [
    ("float32", "float32 float32 float32 float32"), ("bf16", "bf16 bf16 bf16 bf16"),
    ("fp8", "float32 float32 fp8 fp8"), ("nvfp4", "float32 float32 nvfp4 fp4"),
    ("ptpc-fp8", "ptpc_fp8 fp8 float32 float32"), ("w=ptpc_fp8 kv=nvfp4 index=fp4", "ptpc_fp8 fp8 nvfp4 fp4"),
    ("kv=fp8,w=mxfp8", "mxfp8 mxfp8 fp8 fp8"), ("w=mxfp4", "mxfp4 float32 float32 float32"),
    ("w=mxfp4 act=mxfp8", "mxfp4 mxfp8 float32 float32"), ("w=bf16 kv=fp8", "bf16 bf16 fp8 fp8"),
    ("fp8 index=bf16", "float32 float32 fp8 bf16"), ("nvfp4 w=ptpc_fp8", "ptpc_fp8 fp8 nvfp4 fp4"),
    ("w=ptpc_fp8 act=float32", "ptpc_fp8 float32 float32 float32"),
])  # fmt: skip
def test_what_a_mode_stores(words, want):
    assert families(words) == tuple(want.split())


def test_the_device_s_dtype_fills_what_is_not_named():
    assert families("nvfp4", "bf16") == ("bf16", "bf16", "nvfp4", "fp4")
    assert families("nvfp4", "auto") == ("auto", "auto", "nvfp4", "fp4")
    assert QuantMode.parse("float32", "bf16").dtype == "float32"


def test_the_bands_of_the_published_recipe():
    low, middle, high = (QuantMode.parse(f"m31flash-{c}", "bf16") for c in ("c1-4", "c8-16", "c32-48"))
    assert [tuple(m.families().values()) for m in (low, middle)] == [("ptpc_fp8", "fp8", "fp8", "fp8")] * 2
    assert tuple(high.families().values()) == ("ptpc_fp8", "fp8", "nvfp4", "fp4")
    bands = [m.band for m in (low, middle, high)]
    assert all(b and b.k == 7 for b in bands)
    assert [(b.concurrency, b.mono, b.fused_verify_topk, b.prefill_decode_interval) for b in bands if b] == [
        ((1, 4), True, False, 20000), ((8, 16), True, False, 0), ((32, 48), False, True, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "name"), [
    ("kv=nvfp4", "nvfp4"), ("kv=nvfp4 index=fp4", "nvfp4"), ("kv=nvfp4 w=ptpc_fp8", "w=ptpc_fp8 kv=nvfp4"),
    ("  w=ptpc_fp8,act=fp8 ", "ptpc-fp8"), ("bf16 kv=fp8", "w=bf16 kv=fp8"), ("m31flash-c1-4", "m31flash-c1-4"),
    ("kv[0]=fp8 kv[1-2]=fp8 kv[3]=bf16 kv[5]=fp8", "kv[0-2]=fp8 kv[3]=bf16 kv[5]=fp8"),
    ("m31flash-c8-16 kv=bf16 index=bf16", "m31flash-c8-16 kv=bf16"), ("fp8 fp8=e4m3fn kv_scale=1", "fp8"),
])  # fmt: skip
def test_one_setting_has_one_spelling(words, name):
    assert QuantMode.canonical(words) == name
    assert EngineConfig(model=None, quant=words).quant == name  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(preset=st.sampled_from(["", *PRESETS]), words=st.lists(st.sampled_from(WORDS), max_size=5, unique=True))
def test_the_shortest_spelling_means_the_same(preset, words):
    text = " ".join([preset, *words]).strip()
    try:
        mode = QuantMode.parse(text, "auto")
    except EngineError:
        return
    assert QuantMode.parse(mode.name, "auto") == mode
    for dtype in ("float32", "bf16"):
        assert QuantMode.parse(mode.name, dtype) == QuantMode.parse(text, dtype)


@pytest.mark.parametrize(("words", "said"), [
    ("nvpf4", "did you mean nvfp4"), ("", "unknown quant mode"), ("fp8 nvfp4", "put the one preset first"),
    ("kv=fp9", "did you mean fp8"), ("kvv=fp8", "unknown word 'kvv'"), ("kv=fp8 kv=bf16", "gives kv twice"),
    ("w=ptpc_fp8 act=mxfp8", "does not go with act=mxfp8; fix: use act=float32, bf16, fp8"),
    ("act=fp8", "does not go with act=fp8"), ("w=float32 act=bf16", "computes in float32 and in bf16"),
    ("kv[x]=fp8", "use kv.dense., kv.draft., kv.3. or kv.0-2."), ("kv[3-1]=fp8", "use kv.dense."),
    ("kv[1]=fp4", "use one"),
    ("kv_scale=0", "give a positive number"), ("kv_scale=nan", "give a positive number"), ("index=nvfp4", "use one of"),
])  # fmt: skip
def test_what_is_refused(words, said):
    with pytest.raises(EngineError, match=said) as e:
        QuantMode.parse(words)
    assert "\n" not in str(e.value)


def test_hybrids():
    mixed, dense, sparse = (False, True, True), (False,) * 3, (True,) * 3
    mode = QuantMode.parse("nvfp4", "bf16")
    assert mode.kv_formats(sparse=mixed, draft_layers=2) == ("fp8", "nvfp4", "nvfp4", "bf16", "bf16")
    assert mode.kv_formats(sparse=dense) == mode.kv_formats(sparse=sparse) == ("nvfp4",) * 3
    mode = QuantMode.parse("nvfp4 kv[dense]=bf16 kv[draft]=fp8 kv[2]=fp8 fp8=e4m3fnuz", "bf16")
    assert mode.kv_formats(sparse=mixed, draft_layers=1) == ("bf16", "nvfp4", "fp8_fnuz", "fp8_fnuz")
    assert QuantMode.parse("fp8", "bf16").kv_formats(sparse=mixed) == ("fp8",) * 3
    with pytest.raises(EngineError, match="names layer 3, the target has 3"):
        QuantMode.parse("kv[3]=fp8").kv_formats(sparse=mixed)
    with pytest.raises(EngineError, match=r"^quant mode .kv=nvfp4 kv\[0-99\]=fp8. names layer 3, the target"):
        QuantMode.parse("nvfp4 kv[0-99]=fp8").kv_formats(sparse=mixed)


def test_names_of_formats_are_those_of_the_tables():
    from engine.quant import FORMATS, INDEX_FORMATS

    for kv, fp8, scale in product(("float32", "bf16", "fp8", "nvfp4"), ("e4m3fn", "e4m3fnuz"), ("1", "0.25")):
        mode = QuantMode.parse(f"kv={kv} fp8={fp8} kv_scale={scale}")
        assert FORMATS[mode.kv_dtype(0, sparse=(True,))].name == mode.kv_dtype(0, sparse=(True,))
        assert mode.index_format in INDEX_FORMATS
    assert [QuantMode.parse(f"nvfp4 index_fp4={f}").index_format for f in ("nv", "mx")] == ["fp4_nv", "fp4_mx"]


def test_a_mode_needs_no_torch():
    code = "import sys, engine.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
