from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM, Completion, Request, SamplingParams, Step, verify
from engine.api import Cut, FinishReason
from engine.errors import EngineError
from engine.prefix_cache import PageTable
from engine.runner import page_tables
from tests.engine.test_verify import law_p_value
from tests.engine.tiny import EOS, VOCAB, Tiny, prompts, requests


def ids(out: list[Completion]) -> list[tuple[int, ...]]:
    return [o.token_ids for o in out]


def scripted(tiny: Tiny, text: list[int], k: int = 5, **params: Any) -> Completion:
    """One request whose drafts are `text`, and whose target agrees: its logits are bent to follow it."""
    llm = tiny.llm(lambda _, tokens, k: (text + [3] * 9)[len(tokens) - 1 :][:k], k=k)
    llm.target.forward = _follow(text)
    llm.target.logits = lambda hidden: hidden
    return llm.generate(requests([(4,)], **params))[0]


def _follow(text: list[int]):
    """A target that says text[p] at position p, and token 3 after its end."""
    said = torch.tensor(text + [3] * 200)

    def forward(ids, positions, attend, capture=()):
        return torch.nn.functional.one_hot(said[positions], len(VOCAB)).float(), torch.empty(0)

    return forward


def tokens_of(text: str) -> list[int]:
    return [VOCAB.index({" ": "Ġ", "\n": "Ċ"}.get(c, c)) for c in text]


# ------------------------------------------------------------------ how a request ends


def test_a_stop_token_inside_a_block_trims_the_step(tiny: Tiny) -> None:
    out = scripted(tiny, [*tokens_of("abcd"), EOS, *tokens_of("xyz")])
    assert out.token_ids == (*tokens_of("abcd"), EOS)
    assert (out.text, out.finish_reason, out.stop_hit) == ("abcd", FinishReason.STOP, str(EOS))
    (step,) = out.steps
    assert (step.k, step.accepted, step.accepted_trimmed, step.cut) == (5, 5, 4, Cut.STOP)


def test_a_stop_token_that_ends_its_step_cuts_nothing(tiny: Tiny) -> None:
    out = scripted(tiny, [*tokens_of("abcdef"), EOS, *tokens_of("xyz")])
    assert out.text == "abcdef"
    assert out.steps == (Step(k=5, accepted=5, accepted_trimmed=5),)


def test_eos_can_be_ignored_and_leaves_no_text(tiny: Tiny) -> None:
    out = scripted(tiny, [*tokens_of("ab"), EOS, *tokens_of("cd")], ignore_eos=True, max_tokens=5)
    assert out.text == "abcd"
    assert out.finish_reason is FinishReason.LENGTH


def test_a_request_s_own_stop_token(tiny: Tiny) -> None:
    (c,) = tokens_of("c")
    out = scripted(tiny, tokens_of("abcd"), stop_token_ids=(c,), ignore_eos=True)
    assert (out.text, out.stop_hit) == ("ab", str(c))
    assert out.token_ids == tuple(tokens_of("abc"))


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_a_stop_string_across_tokens_and_steps(tiny: Tiny, k: int) -> None:
    out = scripted(tiny, tokens_of("one two\n\nthree"), k, stop=("\n\n", "zzz"))
    assert (out.text, out.finish_reason, out.stop_hit) == ("one two", FinishReason.STOP, "\n\n")
    assert out.token_ids == tuple(tokens_of("one two\n\n"))
    assert sum(s.accepted_trimmed + 1 for s in out.steps) >= len(out.token_ids) - 1


def test_the_earliest_stop_string_wins(tiny: Tiny) -> None:
    out = scripted(tiny, tokens_of("x=1+2;"), stop=("2;", "1+2", "+2"))
    assert (out.text, out.stop_hit) == ("x=", "1+2")


def test_a_stop_string_inside_a_token(tiny: Tiny) -> None:
    the = VOCAB.index("the")
    out = scripted(tiny, [*tokens_of("ab"), the, *tokens_of("x")], stop=("h",))
    assert (out.text, out.token_ids[-1]) == ("abt", the)


def test_a_stop_string_that_is_a_special_token(tiny: Tiny) -> None:
    out = scripted(tiny, [*tokens_of("ab"), 2, *tokens_of("x")], stop=("<mask>",))
    assert (out.text, out.stop_hit, out.token_ids[-1]) == ("ab", "<mask>", 2)


def test_a_character_in_two_tokens(tiny: Tiny) -> None:
    pair = [VOCAB.index("Ã"), VOCAB.index("©")]
    out = scripted(tiny, [*tokens_of("a"), *pair, *tokens_of("b;c")], stop=(";",))
    assert out.text == "aéb"
    out = scripted(tiny, [*tokens_of("a"), *pair, *tokens_of("b;c")], stop=("é",))
    assert (out.text, out.token_ids[-1]) == ("a", pair[1])


@pytest.mark.parametrize(("max_tokens", "trimmed", "cut"), [(7, 5, Cut.NONE), (6, 5, Cut.LIMIT), (4, 3, Cut.LIMIT)])
def test_overshoot_at_max_tokens_is_trimmed(tiny: Tiny, max_tokens: int, trimmed: int, cut: Cut) -> None:
    out = scripted(tiny, tokens_of("abcdefghijkl"), max_tokens=max_tokens)
    assert len(out.token_ids) == max_tokens
    assert out.finish_reason is FinishReason.LENGTH
    assert out.steps == (Step(k=5, accepted=5, accepted_trimmed=trimmed, cut=cut),)


def test_a_stop_beyond_max_tokens_is_no_stop(tiny: Tiny) -> None:
    out = scripted(tiny, [*tokens_of("abcd"), EOS], max_tokens=3)
    assert (out.text, out.finish_reason, out.stop_hit) == ("abc", FinishReason.LENGTH, "")


def test_one_token_needs_no_step(tiny: Tiny) -> None:
    out = scripted(tiny, tokens_of("abc"), max_tokens=1)
    assert (out.text, out.steps, out.finish_reason) == ("a", (), FinishReason.LENGTH)


def test_max_tokens_beyond_the_context_is_cut(tiny: Tiny) -> None:
    llm = tiny.llm(max_model_len=20)
    (out,) = llm.generate(requests([(5,) * 15], max_tokens=500, ignore_eos=True))
    assert len(out.token_ids) == 5
    assert out.finish_reason is FinishReason.LENGTH


# ------------------------------------------------------------------ batches


def test_nan_weights_in_the_computation_stop_the_run(tiny: Tiny) -> None:
    llm = tiny.llm()
    llm.target.head.weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="logits hold a NaN"):
        llm.generate(requests(["abc"]))
    assert llm.pool.in_use == 0


def test_results_come_in_order_and_on_finish_as_they_end(tiny: Tiny) -> None:
    ask = [
        Request(id=f"n{n}", prompt=(5, 6), params=SamplingParams(max_tokens=n, ignore_eos=True)) for n in (9, 2, 5, 1)
    ]
    seen: list[str] = []
    out = tiny.llm().generate(ask, on_finish=lambda c: seen.append(c.id))
    assert [o.id for o in out] == ["n9", "n2", "n5", "n1"]
    assert seen == ["n1", "n2", "n5", "n9"]
    assert tiny.llm().generate([]) == []


def test_a_failing_on_finish_leaves_the_engine_usable(tiny: Tiny) -> None:
    llm = tiny.llm(k=3)
    ask = requests(prompts(6), max_tokens=9)

    def fail(_: Completion) -> None:
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        llm.generate(ask, on_finish=fail)
    assert llm.pool.in_use == 0
    assert ids(llm.generate(ask)) == ids(tiny.llm(k=3).generate(ask))


def test_k_0_says_what_it_leaves_out(tiny: Tiny) -> None:
    assert tiny.llm(k=0, verify="block", verify_rows=64).notes == (
        "K is 0: there is no draft for verify=block and verify_rows=64",
    )
    assert tiny.llm(k=0).notes == () and tiny.llm(k=3, verify="block").notes == ()


def test_k_0_takes_no_verify_step(tiny: Tiny) -> None:
    llm = tiny.llm(draft="dspark", draft_path=tiny.draft)
    out = llm.generate(requests(prompts(4), max_tokens=8))
    assert llm.counters["verify_steps"] == 0
    assert all(s == Step(k=0, accepted=0, accepted_trimmed=0) for o in out for s in o.steps)
    assert all(len(o.steps) == len(o.token_ids) - 1 for o in out)


def test_counters_add_up(tiny: Tiny) -> None:
    llm = tiny.llm(k=3, prefix_cache=False, max_batched_tokens=16)
    out = llm.generate(requests(prompts(6), max_tokens=12))
    c = llm.counters
    steps = [s for o in out for s in o.steps]
    assert c["prefill_tokens"] == sum(o.prompt_tokens for o in out)
    assert c["verify_steps"] == sum(s.k > 0 for s in steps)
    assert c["decode_rows"] == sum(s.k + 1 for s in steps)
    assert 0 < c["peak_pages"] <= llm.pool.num_pages
    # 3 target and 2 draft layers, K and V of one head, and the index keys of two layers, all float32
    assert c["kv_bytes_per_token"] == 5 * 2 * 16 * 4 + 2 * 16 * 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [0, 5])
def test_company_order_chunks_and_preemption_change_no_token(tiny: Tiny, k: int, temperature: float) -> None:
    ask = requests(prompts(14, shared=5), max_tokens=24, temperature=temperature, top_p=0.95, ignore_eos=True)
    want = ids(tiny.llm(k=k).generate(ask))
    assert ids(tiny.llm(k=k, max_batch=1).generate(ask[:4])) == want[:4]
    assert ids(tiny.llm(k=k, max_batch=3).generate(ask[::-1]))[::-1] == want
    tight = tiny.llm(k=k, num_pages=40, max_batched_tokens=11)
    assert ids(tight.generate(ask)) == want
    assert tight.counters["preemptions"] > 0
    assert tight.pool.in_use == 0


def test_seeds_decide_samples(tiny: Tiny) -> None:
    def run(seed: int, run_seed: int = 0) -> tuple[int, ...]:
        llm = tiny.llm(k=3, seed=run_seed)
        return llm.generate(requests(["abc"], max_tokens=20, temperature=1.0, seed=seed, ignore_eos=True))[0].token_ids

    assert run(1) == run(1)
    assert len({run(1), run(2), run(1, run_seed=1)}) == 3


def test_greedy_and_sampled_requests_share_a_batch(tiny: Tiny) -> None:
    ask = [
        Request(id=str(i), prompt=p, params=SamplingParams(max_tokens=15, temperature=i % 2, seed=i))
        for i, p in enumerate(prompts(8))
    ]
    together = ids(tiny.llm(k=4).generate(ask))
    assert together[::2] == ids(tiny.llm().generate(ask[::2]))
    assert together[1::2] == ids(tiny.llm(k=4).generate(ask[1::2]))


def test_text_and_id_prompts_agree(tiny: Tiny) -> None:
    a, b = tiny.llm().generate(requests(["the cat", tuple(tiny.llm().tokenizer.encode(["the cat"])[0])], seed=0))
    assert a.token_ids == b.token_ids
    assert a.prompt_tokens == b.prompt_tokens


@pytest.mark.parametrize("quant", ["bf16", "fp8", "nvfp4"])
def test_other_formats_run_and_take_less_memory(tiny: Tiny, quant: str) -> None:
    llm = tiny.llm(k=3, quant=quant)
    out = llm.generate(requests(prompts(5), max_tokens=10, ignore_eos=True))
    assert all(len(o.token_ids) == 10 for o in out)
    assert llm.counters["kv_bytes_per_token"] < tiny.llm(k=3).counters["kv_bytes_per_token"]


# ------------------------------------------------------------------ the law of sampled text


@pytest.mark.stat
def test_sampled_text_has_the_target_s_law(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joint law of four tokens of top-k 3, 1500 requests, seeds 0..1499, false alarm 1e-4.

    The same test fails when the residual is skipped.
    """
    prompt = prompts(1, seed=5)[0]
    plain = tiny.llm()
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(4):
        law = {(*path, t): mass * p for path, mass in law.items() for t, p in _top3(plain, (*prompt, *path))}

    def p_value(rule: str = "standard") -> float:
        llm = tiny.llm(k=3, max_batch=250, verify=rule)
        out = llm.generate(requests([prompt] * 1500, max_tokens=4, temperature=1.0, top_k=3, ignore_eos=True))
        assert llm.counters["verify_steps"] > 1000
        paths = list(law)
        assert set(ids(out)) <= set(paths)
        seen = torch.zeros(len(paths))
        for o in out:
            seen[paths.index(o.token_ids)] += 1
        return law_p_value(seen, torch.tensor([law[p] for p in paths]).double())

    assert p_value() > 1e-4
    assert p_value("block") > 1e-4
    monkeypatch.setattr(verify, "accept_sampled", partial(verify.accept_sampled, residual=False))
    assert p_value() < 1e-8


@torch.inference_mode()
def _top3(llm: LLM, text: tuple[int, ...]) -> list[tuple[int, float]]:
    """The three likeliest tokens after a text, with their probabilities among themselves."""
    table = PageTable(llm.pool)
    table.grow(len(text))
    pages = page_tables([table], len(text))
    hidden = llm.runner.forward(torch.tensor([text]), np.array([0]), np.array([len(text)]), pages)
    table.release()
    best = llm.target.logits(hidden[-1]).topk(3)
    return list(zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True))


def test_importing_the_records_costs_no_torch() -> None:
    code = "import sys, engine; engine.EngineConfig; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
