from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from engine.sampling import Purpose, draw, one_hot, request_key, uniforms
from engine.verify import (
    Decision,
    accept_block,
    accept_forced,
    accept_greedy,
    accept_sampled,
    block_chances,
    forced_rates,
)

RULES = (accept_sampled, accept_block)
FALSE_ALARM = 1e-4  # of each law test below, were its seed drawn anew; the seeds are fixed


Rule = Callable[..., Decision]
Ragged = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    ("drafts", "targets", "accepted", "token"),
    [
        ([5, 6, 7], [5, 6, 7, 8], 3, 8),
        ([5, 6, 7], [5, 6, 9, 8], 2, 9),
        ([5, 6, 7], [4, 6, 7, 8], 0, 4),
        ([5, 6, 7], [5, 1, 7, 8], 1, 1),  # a later match does not count
    ],
)
def test_greedy_keeps_the_longest_matching_prefix(
    drafts: list[int], targets: list[int], accepted: int, token: int
) -> None:
    got = accept_greedy(torch.tensor([targets]), torch.tensor([drafts]))
    assert (got.accepted.tolist(), got.token.tolist()) == ([accepted], [token])


def test_places_past_a_count_are_never_accepted() -> None:
    drafts = torch.tensor([[5, 6, 7]] * 4)
    targets = torch.tensor([[5, 6, 7, 8]] * 4)
    got = accept_greedy(targets, drafts, torch.tensor([3, 2, 1, 0]))
    assert got.accepted.tolist() == [3, 2, 1, 0]
    assert got.token.tolist() == [8, 7, 6, 5]


block = st.integers(1, 7).flatmap(
    lambda k: st.tuples(st.lists(st.integers(0, 2), min_size=k, max_size=k), st.integers(0, k), st.integers(0, 2**30))
)


@given(st.lists(block, min_size=1, max_size=1))
@settings(max_examples=60, deadline=None)
def test_sampling_without_chance_is_the_greedy_rule(blocks: list[tuple[list[int], int, int]]) -> None:
    drafts_list, count, seed = blocks[0]
    g = torch.Generator().manual_seed(seed)
    k, vocab = len(drafts_list), 3
    drafts, counts = torch.tensor([drafts_list]), torch.tensor([count])
    targets = torch.randint(0, vocab, (1, k + 1), generator=g)
    u, v = torch.rand(1, k, generator=g).double(), torch.rand(1, k + 1, generator=g).double()
    want = accept_greedy(targets, drafts, counts)
    loop = 0
    while loop < count and drafts_list[loop] == targets[0, loop]:
        loop += 1
    assert want.accepted.item() == loop
    for accept in RULES:
        for q in (None, one_hot(drafts, vocab)):
            got = accept(one_hot(targets, vocab), q, drafts, u, v, counts)
            assert torch.equal(got.accepted, want.accepted)
            assert torch.equal(got.token, want.token)


@pytest.mark.parametrize("accept", RULES)
def test_a_draft_with_the_target_s_own_law_is_always_kept(accept: Rule) -> None:
    g = torch.Generator().manual_seed(3)
    p = torch.rand(500, 5, 9, generator=g).softmax(-1)
    drafts = draw(p[:, :4], torch.rand(500, 4, generator=g).double())
    u, v = torch.rand(500, 4, generator=g).double(), torch.rand(500, 5, generator=g).double()
    assert accept(p, p[:, :4], drafts, u, v).accepted.min() == 4


@pytest.mark.parametrize("accept", RULES)
def test_a_one_hot_draft_is_a_certain_law(accept: Rule) -> None:
    g = torch.Generator().manual_seed(4)
    p = torch.rand(300, 4, 6, generator=g).softmax(-1)
    drafts = torch.randint(0, 6, (300, 3), generator=g)
    u, v = torch.rand(300, 3, generator=g).double(), torch.rand(300, 4, generator=g).double()
    counts = torch.randint(0, 4, (300,), generator=g)
    short = accept(p, None, drafts, u, v, counts)
    full = accept(p, one_hot(drafts, 6), drafts, u, v, counts)
    assert torch.equal(short.accepted, full.accepted)
    assert torch.equal(short.token, full.token)


class Chain:
    """A target and a draft over `vocab` tokens that look at the last token only, and unlike each other."""

    def __init__(self, vocab: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.p = (2.0 * torch.randn(vocab, vocab, generator=g)).softmax(-1)
        self.q = (self.p.log() + 1.2 * torch.randn(vocab, vocab, generator=g)).softmax(-1)

    def joint(self) -> Tensor:
        """Exact law of the three tokens after token 0, flat [vocab ** 3]."""
        return (self.p[0][:, None, None] * self.p[:, :, None] * self.p[None]).flatten().double()

    def speculate(
        self, n: int, k: int, seed: int, *, accept: Rule, certain: bool, ragged: bool | Ragged, residual: bool
    ) -> Tensor:
        """Counts [vocab ** 3] of the first three tokens of n speculative decodes, drawn by the engine's own counters:
        a position that a later step drafts again must not meet numbers that an earlier choice has looked at.

        ragged: blocks of random lengths, or of those that a function of the drafted paths [n, k+1] gives.
        """
        g = torch.Generator().manual_seed(seed)
        out, length = torch.zeros(n, 3 + k, dtype=torch.long), torch.zeros(n, dtype=torch.long)
        last = torch.zeros(n, dtype=torch.long)
        rows, keys = torch.arange(n), np.array([request_key(seed, i) for i in range(n)], dtype=np.uint64)
        for _ in range(3):  # each step gives at least one token
            chain, laws, first = [last], [], length.numpy() + 1
            u_draft = uniforms(keys, first, k, Purpose.DRAFT)
            for i in range(k):
                law = one_hot(self.p[chain[-1]].argmax(-1), self.vocab) if certain else self.q[chain[-1]]
                laws.append(law)
                chain.append(draw(law, u_draft[:, i]))
            path = torch.stack(chain, 1)
            counts = torch.randint(0, k + 1, (n,), generator=g) if ragged else None
            counts = ragged(path) if callable(ragged) else counts
            got = accept(
                self.p[path],
                None if certain else torch.stack(laws, 1),
                path[:, 1:],
                uniforms(keys, first, k, Purpose.ACCEPT),
                uniforms(keys, first, k + 1, Purpose.TARGET),
                counts,
                residual=residual,
            )
            step = torch.cat((path[:, 1:], got.token[:, None]), 1)
            step[rows, got.accepted] = got.token
            for i in range(k + 1):
                wanted = (i <= got.accepted) & (length < 3)
                out[rows[wanted], length[wanted]] = step[wanted, i]
                length += wanted
            last = out[rows, length - 1]
        v = self.vocab
        return torch.bincount(out[:, 0] * v * v + out[:, 1] * v + out[:, 2], minlength=v**3)


def law_p_value(seen: Tensor, law: Tensor) -> float:
    """Chi-square p-value; cells with fewer than 5 expected are put together."""
    expected = law * seen.sum() / law.sum()
    rare = expected < 5
    f_obs = torch.cat((seen[~rare].double(), seen[rare].sum().double()[None]))
    f_exp = torch.cat((expected[~rare], expected[rare].sum()[None]))
    return float(chisquare(f_obs[f_exp > 0].numpy(), f_exp[f_exp > 0].numpy()).pvalue)


@pytest.mark.stat
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("accept", RULES)
def test_output_has_the_target_s_law(accept: Rule, k: int, certain: bool, ragged: bool) -> None:
    """Joint law of three tokens, 30 000 draws, seed 7, false alarm 1e-4; and it fails without the residual."""
    chain = Chain(8, seed=11)
    seen = chain.speculate(30_000, k, 7, accept=accept, certain=certain, ragged=ragged, residual=True)
    assert law_p_value(seen, chain.joint()) > FALSE_ALARM
    broken = chain.speculate(30_000, k, 7, accept=accept, certain=certain, ragged=ragged, residual=False)
    assert law_p_value(broken, chain.joint()) < 1e-12


class Exact:
    """Every path of a block of `k` drafts over `vocab` tokens after token 0, and the chance that it is drafted."""

    def __init__(self, vocab: int, k: int, seed: int) -> None:
        self.chain, self.k = Chain(vocab, seed), k
        self.paths = torch.tensor([(0, *path) for path in itertools.product(range(vocab), repeat=k)])
        self.drafts = self.paths[:, 1:]
        self.p, self.q = self.chain.p.double()[self.paths], self.chain.q.double()[self.paths[:, :-1]]
        at = self.drafts.unsqueeze(-1)
        self.p_d, self.q_d = (x.gather(-1, at).squeeze(-1) for x in (self.p[:, :-1], self.q))
        self.weight = self.q_d.prod(1)

    def accepted(self, count: int) -> Tensor:
        """float64 [paths, count+1]: chance that the block rule keeps 0..count drafts of each path."""
        _, h = block_chances(self.p, self.q, self.drafts, torch.full((len(self.paths),), count))
        out, left = [], torch.ones(len(h)).double()
        for i in range(count - 1, -1, -1):  # the largest place that holds counts
            out.append(left * h[:, i])
            left = left * (1 - h[:, i])
        return torch.stack([left, *out[::-1]], dim=1)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_block_verification_keeps_at_least_as_many_drafts(k: int, seed: int) -> None:
    """By enumeration of every path: the standard rule keeps sum_i E[prod min(1, p / q)] drafts; at K=1 both are one."""
    exact = Exact(3, k, seed)
    standard = (exact.weight[:, None] * (exact.p_d / exact.q_d).clamp(max=1).cumprod(1)).sum()
    block = (exact.weight[:, None] * exact.accepted(k) * torch.arange(k + 1)).sum()
    if k == 1:
        assert float(block) == pytest.approx(float(standard), abs=1e-9)
    else:
        assert float(block) > float(standard) + 1e-3


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_block_verification_has_the_target_s_law_exactly(count: int) -> None:
    """By enumeration: the law of the first two tokens, with blocks of 0 to 3 of 3 drafts."""
    exact, vocab = Exact(3, 3, 5), 3
    w, _ = block_chances(exact.p, exact.q, exact.drafts, torch.full((len(exact.paths),), count))
    chances = exact.accepted(count)
    law = torch.zeros(vocab, vocab).double()
    step = exact.chain.p.double()
    for j, path in enumerate(exact.paths.tolist()):
        for tau in range(count + 1):
            left = exact.p[j, tau]
            if tau < count:
                left = (w[j, tau] * exact.p[j, tau] - exact.q[j, tau]).clamp(min=0)
            mass = exact.weight[j] * chances[j, tau]
            if not mass:
                continue
            for token, share in enumerate((left / left.sum()).tolist()):
                first, *rest = *path[1 : tau + 1], token
                if rest:
                    law[first, rest[0]] += mass * share
                else:
                    law[first] += mass * share * step[first]
    assert torch.allclose(law, step[0][:, None] * step, atol=1e-6)


def test_the_block_rule_draws_by_its_chances() -> None:
    """A grid of 40 x 40 uniforms: the counts are the chances up to 1/40 a place."""
    exact, n = Exact(3, 2, 4), 40
    u = torch.cartesian_prod(*[(torch.arange(n).double() + 0.5) / n] * 2)
    chances = exact.accepted(2)
    for j in range(len(exact.paths)):
        p, q, drafts = (x[j].expand(len(u), *x.shape[1:]) for x in (exact.p, exact.q, exact.drafts))
        got = accept_block(p, q, drafts, u, torch.zeros(len(u), 3).double())
        shares = torch.bincount(got.accepted, minlength=3).double() / len(u)
        assert torch.allclose(shares, chances[j], atol=2 / n)


@pytest.mark.parametrize("accept", RULES)
@pytest.mark.parametrize("certain", [False, True])
def test_one_by_one_is_the_batch_and_padding_is_never_read(accept: Rule, certain: bool) -> None:
    g = torch.Generator().manual_seed(9)
    n, k, vocab = 60, 5, 7
    p = torch.randn(n, k + 1, vocab, generator=g).softmax(-1)
    q = torch.randn(n, k, vocab, generator=g).softmax(-1)
    drafts, counts = torch.randint(0, vocab, (n, k), generator=g), torch.randint(0, k + 1, (n,), generator=g)
    u, v = torch.rand(n, k, generator=g).double(), torch.rand(n, k + 1, generator=g).double()
    past = torch.arange(k) >= counts[:, None]
    p[:, 1:][past], q[past] = float("nan"), float("nan")  # rows past a count
    whole = accept(p, None if certain else q, drafts, u, v, counts)
    assert (whole.accepted <= counts).all() and (whole.token < vocab).all()
    for i in range(n):
        m = int(counts[i])
        if m:
            one = accept(p[i : i + 1, : m + 1], None if certain else q[i : i + 1, :m], drafts[i : i + 1, :m],
                         u[i : i + 1, :m], v[i : i + 1, : m + 1])  # fmt: skip
            assert (int(one.accepted), int(one.token)) == (int(whole.accepted[i]), int(whole.token[i]))


@pytest.mark.parametrize(("k", "length", "rates"), [
    (3, 2.88, (1, 0.88, 0)), (5, 3.46, (1, 1, 0.46, 0, 0)), (7, 4.04, (1, 1, 1, 0.04, 0, 0, 0)),
    (2, 1.0, (0, 0)), (2, 3.0, (1, 1)), (1, 1.5, (0.5,)),
])  # fmt: skip
def test_forced_rates_are_the_schedule_of_least_variance(k: int, length: float, rates: tuple[float, ...]) -> None:
    assert forced_rates(length, k) == pytest.approx(rates)
    assert 1 + sum(forced_rates(length, k)) == pytest.approx(length)
    n = 1000
    u = (torch.arange(n).double() + 0.5) / n  # every chance, so that the shares are exact to 1 / n
    targets, drafts = torch.arange(k + 1).expand(n, -1), torch.zeros(n, k, dtype=torch.long)
    got = accept_forced(targets, drafts, u, length)
    shares = [float((got.accepted >= i).double().mean()) for i in range(1, k + 1)]
    assert shares == pytest.approx(rates, abs=1 / n)
    assert torch.equal(got.token, got.accepted)  # the target's own, at the row after the last draft
    short = accept_forced(targets, drafts, u, length, torch.full((n,), 1))
    assert int(short.accepted.max()) <= 1


@pytest.mark.parametrize("length", [0.5, 4.5, float("nan")])
def test_a_length_that_k_cannot_have_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match="accepted length"):
        forced_rates(length, 3)
