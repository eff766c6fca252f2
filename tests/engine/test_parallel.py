"""Several ranks against one. Most tests run the ranks as threads of this process, with everything else as it is."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import engine.ranks
from engine import LLM, Completion, EngineConfig, Request
from engine.checkpoint_config import load_model_config
from engine.config import ModelConfig, QuantMode
from engine.draft.eagle3_weights import load_eagle3
from engine.draft.scripted import ScriptedDrafter
from engine.errors import EngineError
from engine.layers import MLP
from engine.model import Target
from engine.parallel import Parallel, RankLost, Stopped
from engine.quant.apply import quantise_module, scales_rows
from engine.quant.linear import QuantLinear
from engine.quant.online import OnlineQuantConfig, linear_names, resolve
from engine.shard import Share, local_config
from engine.verify import Decision
from engine.weights import load_draft, load_target, target_names
from tests.engine.checkpoints import copy, part_of
from tests.engine.tiny import Tiny, build, prompts, requests

NEAR = 1e-4  # a first divergence at a top-two gap below this is a tie that rounding may turn
LAYERS = 4
SHARED = {"use_index_cache": True, "index_topk_freq": 2}  # layer 1 reuses what layer 0 picks


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """8 heads, 4 KV heads: at tp 4 each rank has one."""
    return build(tmp_path_factory.mktemp("four"), layers=LAYERS, heads=(8, 4), **SHARED)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """8 heads, 2 KV heads, as the embedded model's: at tp 4 each lies on two ranks."""
    return build(tmp_path_factory.mktemp("two"), layers=LAYERS, heads=(8, 2), **SHARED)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Of another family, with biases."""
    return build(tmp_path_factory.mktemp("llama"), layers=2, heads=(4, 2), dense=True, intermediate_size=48,
                 architectures=["LlamaForCausalLM"], attention_bias=True)  # fmt: skip


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """4 heads, 1 KV head, which every rank has."""
    return build(tmp_path_factory.mktemp("one"), layers=LAYERS, heads=(4, 1), **SHARED)


class InThread(Parallel):
    """A rank that meets the others in memory."""

    def __init__(self, rank: int, size: int, meeting: tuple[threading.Barrier, list[Any]]) -> None:
        super().__init__(rank, size)
        self._barrier, self._places = meeting

    def gather(self, x: Tensor) -> Tensor:
        self._places[self.rank] = x
        try:
            self._barrier.wait(60)
            whole = torch.stack(self._places)
            self._barrier.wait(60)
        except threading.BrokenBarrierError as e:
            raise RankLost(str(e)) from None
        return whole


def in_threads(size: int, make: Callable[[Parallel], LLM], use: Callable[[LLM], Any]) -> list[Any]:
    """use(make(rank)) of every rank; raises what a rank raised, one that lost another last."""
    barrier, found, errors = threading.Barrier(size), [None] * size, []
    meeting = barrier, [None] * size

    def life(rank: int) -> None:
        try:
            found[rank] = use(make(InThread(rank, size, meeting)))
        except Exception as e:
            errors.append(e)
            barrier.abort()

    threads = [threading.Thread(target=life, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise sorted(errors, key=lambda e: isinstance(e, RankLost))[0]
    return found


def config(tiny: Tiny, tp: int = 1, **settings: Any) -> EngineConfig:
    fixed: dict[str, Any] = {"model": tiny.target, "threads": 1, "page_size": 4, "device": "cpu", "max_model_len": 96}
    if settings.get("k"):
        fixed |= {"draft": "dspark", "draft_path": tiny.draft}
    return EngineConfig(**{**fixed, "tp": tp, **settings})


def sharded(tiny: Tiny, tp: int, use: Callable[[LLM], Any], **settings: Any) -> list[Any]:
    return in_threads(tp, lambda rank: LLM(config(tiny, tp, **settings), parallel=rank), use)


def asked(n: int = 6, **params: Any) -> list[Request]:
    return requests(prompts(n), **{"max_tokens": 24, "ignore_eos": True, **params})


def near_ties(tiny: Tiny, ours: list[Completion], theirs: list[Completion], **settings: Any) -> list[str]:
    """Requests whose tokens part at a near tie of the one-rank model. Fails where they part anywhere else."""
    found = []
    llm = LLM(config(tiny, **settings))
    for a, b, request in zip(ours, theirs, asked(len(ours)), strict=True):
        if a.token_ids == b.token_ids:
            continue
        at = next(i for i, (x, y) in enumerate(zip(a.token_ids, b.token_ids, strict=True)) if x != y)
        context = [*request.prompt, *a.token_ids[:at]]
        gap = abs(llm.score(context, [a.token_ids[at]])[0][0] - llm.score(context, [b.token_ids[at]])[0][0])  # pyright: ignore
        assert gap < NEAR, f"{a.id} parts at {at} with a gap of {gap}"
        found.append(a.id)
    return found


def told(out: list[Completion]) -> list[tuple[Any, ...]]:
    return [(c.token_ids, [(s.k, s.accepted, s.accepted_trimmed) for s in c.steps]) for c in out]


# ------------------------------------------------------------------ the same text and the same steps


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("heads", ["four", "two", "one"])
def test_greedy_text_is_that_of_one_rank(heads: str, tp: int, request: pytest.FixtureRequest) -> None:
    tiny = request.getfixturevalue(heads)
    whole = LLM(config(tiny, k=5)).generate(asked())
    ranks = sharded(tiny, tp, lambda llm: llm.generate(asked()), k=5)
    assert all(told(rank) == told(ranks[0]) for rank in ranks)
    ties = near_ties(tiny, whole, ranks[0])
    assert [told([a]) for a in whole if a.id not in ties] == [told([b]) for b in ranks[0] if b.id not in ties]
    assert len(ties) <= 1
    assert {s.accepted for c in whole for s in c.steps} >= {0, 1}  # drafts were kept and were not


def test_ranks_hold_the_same_prefills(four: Tiny) -> None:
    """Prompts of several chunks and a batch smaller than the queue, with a prefill delayer on every rank."""
    how: dict[str, Any] = {"max_batch": 2, "max_batched_tokens": 12, "prefill_decode_interval": 20000}
    plain = told(LLM(config(four)).generate(asked()))

    def use(llm: LLM) -> tuple[list[Any], dict[str, Any]]:
        return told(llm.generate(asked())), llm.counters["prefill_delayer"]

    ranks = sharded(four, 2, use, **how)
    assert [texts for texts, _ in ranks] == [plain] * 2
    assert ranks[0][1] == ranks[1][1] and ranks[0][1]["hold_decode_interval"] > 0


@pytest.mark.parametrize(("name", "tp"), [("four", 2), ("four", 4), ("two", 4)])
def test_sampled_steps_are_those_of_one_rank(name: str, tp: int, request: pytest.FixtureRequest) -> None:
    tiny, ask = request.getfixturevalue(name), asked(temperature=0.9, top_p=0.95)
    whole = LLM(config(tiny, k=4)).generate(ask)
    ranks = sharded(tiny, tp, lambda llm: llm.generate(ask), k=4)
    assert [told(rank) for rank in ranks] == [told(whole)] * tp


@pytest.mark.parametrize("quant", ["kv=fp8", "kv=nvfp4"])
def test_a_rank_s_cache_holds_its_heads_as_one_rank_has_them(four: Tiny, quant: str) -> None:
    """Layer 0 has the same inputs at any tp, so its numbers are equal; the index key is on every rank."""
    ids = prompts(1)[0][:16] + (5,) * 16

    def stored(llm: LLM) -> tuple[Tensor, Tensor, int]:
        llm.score(ids, [7])
        pages = torch.arange(8)[None]
        return llm.cache.gather(0, pages)[0], llm.cache.gather_index(0, pages), llm.cache.bytes_per_token()

    one = LLM(config(four, quant=quant))
    keys, index, _ = stored(one)
    ranks = sharded(four, 4, stored, quant=quant)
    assert bool((keys.abs().amax((0, 1, 3)) > 0).all())  # every head holds something
    torch.testing.assert_close(torch.cat([k for k, _, _ in ranks], dim=2), keys, rtol=1e-6, atol=1e-6)
    for _, own, size in ranks:
        torch.testing.assert_close(own, index, rtol=1e-6, atol=1e-6)
        assert size == sum(replace(layer, kv_heads=1).bytes_per_token for layer in one.cache.layers)


@pytest.mark.parametrize("quant", ["w=ptpc_fp8", "w=bf16", "kv=nvfp4"])
def test_log_probabilities_part_by_less_than_the_quant_mode_costs(four: Tiny, quant: str) -> None:
    """PTPC's activation scales of row-parallel layers are each rank's own, and sums are rounded in another place."""
    ids = (*prompts(1)[0], *torch.randint(3, 60, (40,), generator=torch.Generator().manual_seed(3)).tolist())

    def score(llm: LLM) -> Tensor:
        return torch.tensor(llm.score(ids[:1], ids[1:])[0])

    plain, whole = score(LLM(config(four))), score(LLM(config(four, quant=quant)))
    ranks = sharded(four, 4, score, quant=quant)
    assert all(torch.equal(rank, ranks[0]) for rank in ranks)
    cost, moved = (whole - plain).abs().mean(), (whole - ranks[0]).abs().mean()
    assert moved < cost < 0.5, (moved, cost)


def test_parts_that_are_not_summed_are_seen(four: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the tests above: one sum left out, and text differs."""
    whole = LLM(config(four, k=5)).generate(asked(2))
    monkeypatch.setattr(Parallel, "sum", lambda self, x: x * self.size)
    with pytest.raises((EngineError, AssertionError)):
        ranks = sharded(four, 2, lambda llm: llm.generate(asked(2)), k=5)
        near_ties(four, whole, ranks[0])


def test_features_are_whole_sums_on_every_rank(four: Tiny) -> None:
    """What a draft captures after a layer is the stream with both of its sums, not a rank's part."""

    def features(llm: LLM) -> Tensor:
        seen: list[Tensor] = []
        drafter: Any = llm.drafter
        drafter.observe = lambda batch, found: seen.append(found)
        llm.score(prompts(1)[0], [7])
        return seen[0]

    whole, ranks = features(LLM(config(four, k=3))), sharded(four, 2, features, k=3)
    assert torch.equal(ranks[0], ranks[1])
    torch.testing.assert_close(ranks[0], whole, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ lock-step


def test_a_rank_that_commits_something_else_is_named(four: Tiny) -> None:
    def broken(rank: Parallel) -> LLM:
        llm = LLM(config(four, 2, k=3), parallel=rank)
        if rank.rank == 1:
            decide = llm.runner._decide

            def other(*args: Any) -> Decision:
                decision = decide(*args)
                return decision._replace(token=(decision.token + 1) % 60)

            runner: Any = llm.runner
            runner._decide = other
        return llm

    with pytest.raises(EngineError, match=r"rank 1 of 2 did not commit what rank 0 did in tick 1; fix: "):
        in_threads(2, broken, lambda llm: llm.generate(asked(2)))


def test_rank_0_ends_a_generation_for_all(four: Tiny) -> None:
    def use(llm: LLM) -> int:
        if llm.parallel.rank == 0:
            llm.generate(asked(1))
            llm.parallel.in_step(stop=True)
        else:
            llm.generate(asked(1))
            with pytest.raises(Stopped):
                llm.generate(asked(3))
        return llm.pool.in_use

    assert sharded(four, 2, use) == [0, 0]


def test_the_sum_is_taken_in_the_order_of_ranks() -> None:
    parts = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])

    class Fixed(Parallel):
        def gather(self, x: Tensor) -> Tensor:
            return parts.to(x.dtype)

    assert Fixed(0, 4).sum(torch.zeros(1)).item() == 1.0  # (1e8 + 1) - 1e8 loses the first 1
    assert Fixed(3, 4).sum(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert Parallel().sum(parts) is parts


# ------------------------------------------------------------------ the cut


def _layer(target: Target, index: int) -> Any:
    return target.layers[index]


def same_parts(whole: nn.Module, part: nn.Module, cfg: ModelConfig, rank: int, size: int) -> bool:
    ours, theirs = dict(part.named_parameters()), dict(whole.named_parameters())
    wrong = [n for n, p in ours.items() if not torch.equal(p, part_of(n, theirs[n], cfg, rank, size))]
    return ours.keys() == theirs.keys() and not wrong


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", ["four", "two", "one", "llama"])
def test_a_rank_loads_its_part_of_each_tensor(name: str, tp: int, request: pytest.FixtureRequest) -> None:
    """Heads in order, a part of each expert, the index key and the router whole; a bias that is added once is one."""
    tiny = request.getfixturevalue(name)
    whole = load_target(tiny.target)
    drafts = load_draft(tiny.draft, whole), load_eagle3(tiny.eagle3, whole)
    kv = max(1, whole.cfg.num_kv_heads // tp)
    for rank in range(tp):
        share = Share(rank=rank, size=tp)
        target = load_target(tiny.target, share=share)
        assert same_parts(whole, target, whole.cfg, rank, tp)
        assert (target.cfg.num_kv_heads, _layer(target, 1).attn.kv_heads) == (kv, kv)
        if target.cfg.sparse is not None:
            assert (target.cfg.sparse.index_heads, _layer(target, 0).indexer.heads) == (kv, kv)
        draft = load_draft(tiny.draft, target, share=share)
        assert same_parts(drafts[0], draft, drafts[0].cfg.model, rank, tp)
        if tp == 2:  # the EAGLE3 draft here has two heads
            assert same_parts(drafts[1], load_eagle3(tiny.eagle3, target, share=share), drafts[1].cfg.model, rank, tp)


def test_ptpc_codes_are_those_of_the_whole_matrix(four: Tiny) -> None:
    """One scale serves a whole row, so a rank's codes are columns of the whole's."""
    whole = _layer(load_target(four.target), 0).mlp
    assert isinstance(whole, MLP)
    target = load_target(four.target, share=Share(rank=1, size=2, row_amax=True))
    down = _layer(target, 0).mlp.down
    ours = QuantLinear(down.weight, "ptpc_fp8", act="fp8", row_amax=down.row_amax)
    theirs = QuantLinear(whole.down.weight, "ptpc_fp8", act="fp8")
    half = whole.down.in_features // 2
    assert torch.equal(ours.codes, theirs.codes[:, half:]) and torch.equal(ours.scales, theirs.scales)
    alone = QuantLinear(down.weight, "ptpc_fp8", act="fp8")
    assert not torch.equal(alone.scales, theirs.scales)
    assert not hasattr(_layer(load_target(four.target, share=Share(rank=1, size=2)), 0).mlp.down, "row_amax")
    for quant, online, wanted in (("w=ptpc_fp8", "", True), ("bf16", "", False), ("w=mxfp8", "", False),
                                  ("bf16", '{"layer_quant_config": {"a": "ptpc_fp8"}}', True)):  # fmt: skip
        cfg = config(four, quant=quant, online_quant_config=online)
        assert scales_rows(cfg, QuantMode.parse(quant, "float32")) == wanted


def test_so_are_those_of_the_experts(four: Tiny) -> None:
    mode, asked = QuantMode.parse("float32"), OnlineQuantConfig(global_format="ptpc_fp8")

    def experts(share: Share) -> tuple[list[QuantLinear], list[QuantLinear]]:
        target = load_target(four.target, share=share)
        quantise_module(target, resolve(asked, linear_names(target, target_names(target.cfg))), mode=mode)
        moe = _layer(target, 1).mlp
        return [*moe.gate_up], [*moe.down]

    (up, down), (whole_up, whole_down) = experts(Share(rank=1, size=2, row_amax=True)), experts(Share())
    for ours, theirs in zip(down, whole_down, strict=True):
        assert torch.equal(ours.codes, theirs.codes[:, theirs.in_features // 2 :])
        assert torch.equal(ours.scales, theirs.scales)
    for ours, theirs in zip(up, whole_up, strict=True):
        gate_and_up = torch.cat([codes[codes.shape[0] // 2 :] for codes in theirs.codes.chunk(2)])
        assert torch.equal(ours.codes, gate_and_up)


def test_what_does_not_divide_is_refused_before_anything_starts(four: Tiny, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"the target has 2 attention heads, which tp=4 does not divide; fix: use tp=1, 2"
    ):
        LLM(config(tiny, 4))
    cfg = load_model_config(four.target)
    with pytest.raises(EngineError, match="has 4 KV heads, which tp=3 does not divide"):
        local_config(cfg, 3)
    odd = build(tmp_path, layers=2, heads=(4, 2), intermediate_size=18)
    with pytest.raises(EngineError, match=r"has 18 as its experts' size, which tp=4 does not divide; fix: use tp=1, 2"):
        local_config(load_model_config(odd.target), 4)
    with pytest.raises(EngineError, match="tp is 0"):
        config(four, 0)
    assert local_config(cfg, 1) is cfg


# ------------------------------------------------------------------ processes


def stepped(llm: LLM, ask: list[Request]) -> dict[str, tuple[int, ...]]:
    """Tokens of requests that come one a tick; the second is given up after the third came."""
    done: dict[str, tuple[int, ...]] = {}
    waiting = list(ask)
    while waiting or llm.busy:
        if waiting:
            llm.add(waiting.pop(0))
        if len(waiting) == 1:
            llm.cancel(ask[1].id)
        done |= {u.id: u.completion.token_ids for u in llm.step() if u.completion}
    return done


def agrees(_: str, tokens: list[int], k: int) -> list[int]:
    return [tokens[-1]] * k


@pytest.mark.tp
def test_four_processes_serve_as_one(four: Tiny) -> None:
    """Text, steps, scores, an early end, and a rank that dies: one LLM for all, since starting it takes seconds."""
    whole = LLM(config(four, k=4, quant="kv=fp8"))
    llm = LLM(config(four, 4, k=4, quant="kv=fp8"))
    try:
        for ask in (asked(4, max_tokens=12), asked(4, max_tokens=12, temperature=0.8)):
            assert told(llm.generate(ask)) == told(whole.generate(ask))
        ids = prompts(1)[0]
        assert llm.score(ids, [7, 9])[0] == pytest.approx(whole.score(ids, [7, 9])[0], abs=1e-4)
        assert llm.counters["kv_bytes_per_token"] < whole.counters["kv_bytes_per_token"] / 2

        def enough(completion: Completion) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            llm.generate(asked(4, max_tokens=2), enough)
        served = [stepped(one, asked(4, max_tokens=8)) for one in (llm, whole)]  # still in step
        assert served[0] == served[1] and len(served[0]) == 3

        assert llm.ranks is not None
        victim = llm.ranks._processes[1]
        os.kill(victim.pid or 0, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(EngineError, match=r"^rank 2 of 4 was ended by SIGKILL; fix: "):
            llm.generate(asked(4))
        assert time.monotonic() - start < 30
        with pytest.raises(EngineError, match="the ranks of this LLM have ended; fix: make a new LLM"):
            llm.generate(asked(1))
        assert not any(p.is_alive() for p in llm.ranks._processes)
    finally:
        llm.close()


@pytest.mark.tp
def test_what_another_rank_finds_wrong_is_told(four: Tiny, tmp_path: Path) -> None:
    """A NaN in columns that rank 0 does not read; and no other rank waits for long."""

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        matrix = tensors["model.layers.0.mlp.down_proj.weight"].clone()
        matrix[0, -1] = torch.nan
        return tensors | {"model.layers.0.mlp.down_proj.weight": matrix}

    folder = copy(four.target, tmp_path / "nan", spoil)
    load_target(folder, share=Share(rank=0, size=2))
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"layers\.0\.mlp\.down_proj\.weight holds a NaN .*; fix: restore"):
        LLM(config(four, 2, model=folder))
    assert time.monotonic() - start < 120


@pytest.mark.tp
def test_a_silent_rank_ends_in_one_line(four: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is stopped in its tracks; the drafter here is an object that travels to it."""
    monkeypatch.setattr(engine.ranks, "REASON_S", 0.5)
    llm = LLM(config(four, 2, k=2, draft="scripted", draft_path=None), drafter=ScriptedDrafter(agrees))
    try:
        assert len(llm.generate(asked(1))) == 1
        assert llm.ranks is not None
        llm.parallel.timeout = 3.0
        os.kill(llm.ranks._processes[0].pid or 0, signal.SIGSTOP)
        with pytest.raises(EngineError, match="a rank of 2 gave no answer"):
            llm.generate(asked(1))
    finally:
        llm.close()
    assert not any(p.is_alive() for p in llm.ranks._processes)


def test_a_drafter_that_cannot_travel_is_refused(four: Tiny) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(ScriptedDrafter(lambda *_: []))
    with pytest.raises(EngineError, match="the drafter cannot be sent to the other ranks"):
        LLM(config(four, 2, k=2, draft="scripted", draft_path=None), drafter=ScriptedDrafter(lambda *_: []))
