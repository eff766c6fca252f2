"""Products with all experts' matrices in one launch, against the product of each expert by itself.

Bit for bit on whole numbers, whose sums are exact in any order; else within the rounding of float32 sums (2e-6 of the
largest, as for one matrix).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.kernels import Kernels, experts, launch, linear, reference
from engine.kernels.groups import Groups
from engine.moe import MoE
from engine.quant import FP8_FNUZ, QuantLinear, WeightOptions, decode_mxfp4, decode_mxfp8, encode_mxfp4, encode_mxfp8
from engine.quant.experts import QuantExperts
from tests.engine.test_moe import config

EXPERTS = 5
ROUTES: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "spread": lambda places, g: torch.randint(0, EXPERTS, (places,), generator=g),
    "all to one": lambda places, g: torch.full((places,), 3),
    "some get none": lambda places, g: torch.tensor([1, 4])[torch.randint(0, 2, (places,), generator=g)],
}


def matrices(n: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Codes [EXPERTS, n, k] and scales [EXPERTS, n, 1] of random weights."""
    size = torch.rand(EXPERTS, n, 1, generator=generator)
    return reference.quantise_rows(torch.randn(EXPERTS, n, k, generator=generator) * size)


@pytest.mark.parametrize("height", [64, 128])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("rows", "share", "n", "k"), [(1, 1, 16, 32), (1, 4, 70, 100), (33, 4, 40, 256),
                                                       (130, 1, 65, 96)])  # fmt: skip
def test_products_equal_the_twin(
    rows: int, share: int, n: int, k: int, route: str, height: int, device: torch.device, generator: torch.Generator
) -> None:
    ids = ROUTES[route](rows * share, generator).to(device)
    x, x_scale = (t.to(device) for t in reference.quantise_rows(torch.randn(rows, k, generator=generator)))
    w, w_scale = (t.to(device) for t in matrices(n, k, generator))
    groups = Groups.of(ids, EXPERTS, height)
    found = experts.ptpc_experts(x, x_scale, w, w_scale, groups, torch.float32)
    expected = reference.ptpc_experts(x, x_scale, w, w_scale, groups, torch.float32)
    assert (found - expected).abs().max() < 2e-6 * expected.abs().max()


@pytest.mark.parametrize("rows", [1, 7, 70])
def test_whole_numbers_are_the_product_of_each_expert_bit_for_bit(
    rows: int, device: torch.device, generator: torch.Generator
) -> None:
    share, n, k = 3, 50, 160
    ids = torch.randint(0, EXPERTS - 1, (rows * share,), generator=generator).to(device)  # the last expert has none
    x, w = (torch.randint(-8, 9, s, generator=generator).float().to(torch.float8_e4m3fn).to(device)
            for s in ((rows, k), (EXPERTS, n, k)))  # fmt: skip
    x_scale, w_scale = (torch.rand(*s, 1, generator=generator).to(device) for s in ((rows,), (EXPERTS, n)))
    groups = Groups.of(ids, EXPERTS, 64)
    for dtype in (torch.float32, torch.bfloat16):
        found = experts.ptpc_experts(x, x_scale, w, w_scale, groups, dtype)
        for e in range(EXPERTS):
            places = (ids == e).nonzero().squeeze(1)
            part = linear.ptpc_matmul(x[places // share], x_scale[places // share], w[e], w_scale[e], dtype)
            assert found[places].equal(part)
        if dtype == torch.float32:  # Triton's interpreter does not round to bf16 as torch does
            assert found.equal(reference.ptpc_experts(x, x_scale, w, w_scale, groups, dtype))


def test_a_nan_spoils_its_row_alone_and_no_place_is_none(device: torch.device, generator: torch.Generator) -> None:
    x = torch.ones(3, 32)
    x[1, 3] = torch.nan
    values, scale = linear.quantise_rows(x.to(device))
    w, w_scale = (t.to(device) for t in matrices(16, 32, generator))
    groups = Groups.of(torch.tensor([2, 2, 2, 0, 4, 2], device=device), EXPERTS, 64)
    y = experts.ptpc_experts(values, scale, w, w_scale, groups, torch.float32)
    assert y.isfinite().all(1).tolist() == [True, True, False, False, True, True]
    none = Groups.of(torch.empty(0, dtype=torch.int64, device=device), EXPERTS, 64)
    assert experts.ptpc_experts(values[:0], scale[:0], w, w_scale, none, torch.float32).shape == (0, 16)


def mx_matrices(packed: bool, n: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Codes and scales of random weights, whose blocks differ in size."""
    w = torch.randn(EXPERTS, n, k, generator=generator) * torch.exp2(
        torch.randint(-9, 9, (EXPERTS, n, 1), generator=generator)
    )
    codes, scales = (encode_mxfp4 if packed else encode_mxfp8)(w)
    return codes.view(torch.uint8), scales


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("rows", "share", "n", "k", "route", "height"),
    [
        (1, 1, 16, 32, "all to one", 16),
        (1, 4, 70, 96, "spread", 16),
        (33, 4, 40, 256, "spread", 16),
        (33, 4, 40, 256, "some get none", 64),
        (130, 1, 65, 160, "all to one", 128),
    ],
)
def test_mx_products_equal_the_twin(
    rows: int, share: int, n: int, k: int, route: str, height: int, packed: bool, device: torch.device,
    generator: torch.Generator,
) -> None:  # fmt: skip
    ids = ROUTES[route](rows * share, generator).to(device)
    w, w_scale = (t.to(device) for t in mx_matrices(packed, n, k, generator))
    groups = Groups.of(ids, EXPERTS, height)
    size = reference.mx_experts(torch.ones(rows, k, device=device), absolute(w, packed), w_scale, groups)
    for dtype in (
        torch.float32,
        *([torch.bfloat16] if device.type == "cuda" else []),
    ):  # interpreted, bf16 is not added
        x = torch.randn(rows, k, generator=generator).to(device, dtype)
        found = experts.mx_experts(x, w, w_scale, groups).float()
        expected = reference.mx_experts(x.float(), w, w_scale, groups)
        unit = 1e-6 if dtype == torch.float32 else 2.0**-8  # the second is the rounding of the result
        assert ((found - expected).abs() <= 4 * unit * size).all() and expected.abs().max() > 0


def absolute(w: Tensor, packed: bool) -> Tensor:
    """Codes without their signs."""
    return w & (0x77 if packed else 0x7F)


def test_bf16_holds_every_decoded_number_of_usual_scales() -> None:
    codes, scales = torch.arange(256, dtype=torch.uint8).view(8, 32), torch.arange(16, 248, dtype=torch.uint8)
    for scale in scales:
        one = scale.expand(8, 1)
        for found in (decode_mxfp8(codes, one), decode_mxfp4(codes[:, :16].contiguous(), one)):
            torch.testing.assert_close(found.bfloat16().float(), found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("packed", [True, False])
def test_every_code_and_scale_decodes_as_the_twin_does(packed: bool, device: torch.device) -> None:
    """By the rows of a unit matrix: each number of the experts' matrices by itself. NaN codes are left out, which
    Triton's interpreter does not know; a NaN scale spoils the rest of its row of weights as well, on both sides."""
    generator = torch.Generator().manual_seed(5)
    n, k = 24, 64
    w = torch.randint(0, 256, (EXPERTS, n, k // 2 if packed else k), generator=generator, dtype=torch.uint8)
    if not packed:
        w[(w & 0x7F) == 0x7F] = 1
    w_scale = torch.randint(100, 150, (EXPERTS, n, 2), generator=generator, dtype=torch.uint8)
    w_scale[0, 0, 0] = 255
    for e in range(EXPERTS):
        groups = Groups.of(torch.full((k,), e, device=device), EXPERTS, 64)
        row = (torch.eye(k).to(device), w.to(device), w_scale.to(device), groups)
        torch.testing.assert_close(experts.mx_experts(*row), reference.mx_experts(*row), rtol=0, atol=0, equal_nan=True)


def quantised(
    made: Kernels, *, options: WeightOptions | None = None, format: str = "ptpc_fp8", act: str = "fp8"
) -> MoE:
    """A MoE of 6 experts with 2 for each row, its stacks quantised."""
    torch.manual_seed(0)
    moe = MoE(config(size=32, hidden=32)).eval()
    for p in moe.parameters():
        torch.nn.init.normal_(p, std=0.5)
    for name in ("gate_up", "down"):
        stack = getattr(moe, name).detach()
        delattr(moe, name)
        layers = [QuantLinear(w, format, act=act, options=options, kernels=made) for w in stack]
        setattr(moe, name, QuantExperts(layers, len(layers)))
    return moe


@pytest.mark.parametrize(
    ("format", "act", "op"),
    [
        ("ptpc_fp8", "fp8", "ptpc_experts"),
        ("mxfp8", "mxfp8", "mx_experts"),
        ("mxfp4", "", "mx_experts"),
        ("mxfp4", "mxfp4", "mx_experts"),
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_a_layer_by_one_launch_a_stack_is_the_layer_by_experts(
    rows: int, format: str, act: str, op: str, generator: torch.Generator
) -> None:
    made = Kernels(), Kernels(triton=True)
    plain, fast = (quantised(m, format=format, act=act) for m in made)
    x = torch.randn(rows, 32, generator=generator)
    with torch.inference_mode():
        ids, weights = fast.route(x)
        found = fast.routed(x, ids, weights)
        torch.testing.assert_close(found, plain.routed(x, ids, weights), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, fast.by_expert(x, ids, weights), rtol=1e-5, atol=1e-5)
        one = torch.zeros_like(ids)
        torch.testing.assert_close(fast.routed(x, one, weights), plain.routed(x, one, weights), rtol=1e-5, atol=1e-5)
    by_layers = ["ptpc_matmul"] if op == "ptpc_experts" else []
    assert made[0].served() == {"triton": [], "twin": [op, *by_layers]}
    assert made[1].served() == {"triton": [op, *by_layers], "twin": []}  # the latter by by_expert


def test_stacks_in_two_formats_and_in_one_without_a_kernel(generator: torch.Generator) -> None:
    """Both stacks of a layer go the same way: to kernels, each in its format, or expert by expert."""
    x = torch.randn(20, 32, generator=generator)
    for format, act, served in (("mxfp4", "mxfp8", ["mx_experts", "ptpc_experts"]), ("per_block_fp8", "fp8", [])):
        made = Kernels(triton=True)
        mixed, plain = quantised(made), quantised(Kernels())
        mixed.down = quantised(made, format=format, act=act).down
        plain.down = quantised(Kernels(), format=format, act=act).down
        with torch.inference_mode():
            torch.testing.assert_close(mixed(x), plain(x), rtol=1e-4, atol=1e-4)
        assert mixed.counts_on_host is (not served) and plain.counts_on_host
        assert made.served() == {"triton": served or ["ptpc_matmul"], "twin": []}


def test_one_launch_for_each_stack(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    """Of 40 rows that go to four experts and more: two quantisations and two products."""
    ran: list[str] = []
    right = launch.Launch.run
    monkeypatch.setattr(launch.Launch, "run", lambda self: (ran.append(self.kernel.fn.__name__), right(self)))
    moe, x = quantised(Kernels(triton=True)), torch.randn(40, 32, generator=generator)
    ids, weights = moe.route(x)
    assert len(ids.unique()) > 3
    moe.routed(x, ids, weights)
    assert ran == ["quantise_rows_kernel", "ptpc_experts_kernel"] * 2


def test_a_wrong_expert_is_seen(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    plain, fast = quantised(Kernels()), quantised(Kernels(triton=True))
    x = torch.randn(9, 32, generator=generator)
    right = Groups.of

    def shifted(ids: Tensor, experts: int, height: int) -> Groups:
        made = right(ids, experts, height)
        moved = made.tiles.clone()
        moved[0] = (moved[0] + 1) % experts
        return replace(made, tiles=moved)

    monkeypatch.setattr(Groups, "of", shifted)
    assert not torch.allclose(fast(x), plain(x), rtol=1e-2, atol=1e-2)


def test_the_layers_of_a_stack_share_its_memory_and_follow_it(generator: torch.Generator) -> None:
    stack = quantised(Kernels(triton=True)).down
    assert isinstance(stack, QuantExperts)
    for moved in (stack, stack.to(torch.device("cpu"))):
        for layer, codes, scales in zip(moved, moved.codes, moved.scales, strict=True):
            assert isinstance(layer, QuantLinear)
            assert (layer.codes.data_ptr(), layer.scales.data_ptr()) == (codes.data_ptr(), scales.data_ptr())
    assert {name.rpartition(".")[2] for name in stack.state_dict()} == {"codes", "scales"}
    assert len(stack.state_dict()) == 2 * len(stack)  # those of the layers alone


def test_other_dialects_go_by_experts(generator: torch.Generator) -> None:
    made = Kernels(triton=True)
    quantised(made, options=WeightOptions(fp8=FP8_FNUZ))(torch.randn(3, 32, generator=generator))
    assert made.served() == {"triton": [], "twin": ["ptpc_experts", "ptpc_matmul"]}


def test_both_entries_give_the_same(generator: torch.Generator) -> None:
    w, w_scale = matrices(16, 32, generator)
    x, x_scale = reference.quantise_rows(torch.randn(2, 32, generator=generator))
    groups = Groups.of(torch.tensor([0, 4, 4, 1]), EXPERTS, 64)
    one, other = (m.ptpc_experts(x, x_scale, w, w_scale, groups, torch.float32) for m in (kernels, reference))
    torch.testing.assert_close(one, other)
