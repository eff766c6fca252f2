from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.graph_sizes import ATOM_SIZES
from engine.mono.router import MAX_ROWS, MonoStep, Router, covered, largest_batch, unfit

FP8 = {"formats": ["fp8", "fp8"], "index_formats": ["fp8"], "dtype": "float32", "device": "cpu", "max_length": 4096}


# running decodes -> served at K=3, 5, 7, with ATOM's sizes
@pytest.mark.parametrize(("n", "served"), [
    (1, (True, True, True)), (2, (True, True, True)), (3, (True, False, False)), (4, (True, False, False)),
    (5, (False, False, False)), (16, (False, False, False)),
])  # fmt: skip
def test_the_published_table(n: int, served: tuple[bool, ...]) -> None:
    for k, expected in zip((3, 5, 7), served, strict=True):
        router = Router(k, ATOM_SIZES)
        assert (router.serve_mono(MonoStep(decoding=n, k=k)) == "") is expected
        assert router.serve_mono(MonoStep(decoding=n, k=k)) in ("", "rows")


def test_the_largest_batch_by_k() -> None:
    assert [largest_batch(k, ATOM_SIZES) for k in (0, 1, 3, 5, 7)] == [16, 8, 4, 2, 2]
    assert [largest_batch(k) for k in (0, 1, 2, 3, 5, 7)] == [16, 8, 5, 4, 2, 2]


def test_padding_takes_rows() -> None:
    assert covered(5, 2) and not covered(5, 2, ATOM_SIZES)  # 15 rows, padded 24
    assert covered(5, 2, (1, 2, 3, 4, 5)) and largest_batch(2, ATOM_SIZES) == 4
    assert not covered(1, 1, (16,)) and largest_batch(1, (16,)) == 0
    assert covered(3, 3, (1, 2)) and not covered(5, 3, (1, 2))  # above the largest size nothing is padded


def test_a_prefill_is_refused() -> None:
    router = Router(3)
    assert router.serve_mono(MonoStep(decoding=1, k=3, prefilling=1)) == "prefill"
    assert router.serve_mono(MonoStep(decoding=0, k=3)) == "prefill"


@pytest.mark.parametrize(("change", "reason"), [
    ({}, ""), ({"formats": ["fp8", "nvfp4"]}, "kv_format"), ({"formats": ["fp8_fnuz"]}, "kv_format"),
    ({"index_formats": ["fp4_nv"]}, "index_format"), ({"index_formats": []}, ""), ({"dtype": "bf16"}, "dtype"),
    ({"device": "cuda"}, "device"), ({"max_length": 1 << 20}, ""), ({"max_length": (1 << 20) + 1}, "max_length"),
])  # fmt: skip
def test_what_no_step_of_an_engine_can_be_served_for(change: dict[str, object], reason: str) -> None:
    assert unfit(**{**FP8, **change}) == reason  # pyright: ignore[reportArgumentType]


def test_counters_add_up() -> None:
    router = Router(5, ATOM_SIZES)
    assert "mono_share" not in router.counters()
    assert [router.route(n) for n in (1, 2, 3, 4, 1)] == [True, True, False, False, True]
    assert router.counters() == {
        "mono_steps": 3, "mono_rows": 6 + 12 + 6, "ordinary_steps": 2, "mono_refused": {"rows": 2}, "mono_share": 0.6,
    }  # fmt: skip
    off = Router(5, why_not="off")
    assert not off.route(1) and off.counters() == {
        "mono_steps": 0, "mono_rows": 0, "ordinary_steps": 1, "mono_refused": {"off": 1},
    }  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), [
    ({"k": 7, "max_batch": 3}, "3 requests that decode together at K=7 make steps of 24 rows; Mono serves at most 16; "
                               "fix: use --batch 2 at most"),
    ({"k": 2, "max_batch": 5, "graphs": "atom"}, ""),  # 5 is above every size that is left: not padded
    ({"k": 2, "max_batch": 5, "graphs": "1,8"}, ""),
    ({"k": 2, "max_batch": 8, "graphs": "1,8"}, "fix: use --batch 1 at most"),
    ({"k": 0, "max_batch": MAX_ROWS}, ""), ({"k": 0, "max_batch": 17}, "use --batch 16 at most"),
    ({"k": 7, "max_batch": 2, "quant": "nvfp4"}, "the quant mode is nvfp4: Mono reads fp8 caches only"),
    ({"k": 7, "max_batch": 2, "quant": "kv=fp8 index=fp4"}, "Mono reads fp8 caches only"),
    ({"k": 7, "max_batch": 2, "quant": "fp8 fp8=e4m3fnuz"}, "Mono reads fp8 caches only"),
    ({"mono": "requir"}, "unknown mono 'requir'; fix: did you mean require"),
])  # fmt: skip
def test_demanding_mono(tmp_path, settings: dict[str, object], words: str) -> None:
    given = {"model": tmp_path, "quant": "fp8", "mono": "require", "draft": "ngram", **settings}
    if not words:
        EngineConfig(**given)  # pyright: ignore[reportArgumentType]
        return
    with pytest.raises(EngineError) as caught:
        EngineConfig(**given)  # pyright: ignore[reportArgumentType]
    assert words in str(caught.value) and "\n" not in str(caught.value)
