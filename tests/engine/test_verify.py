from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from engine.sampling import draw, one_hot
from engine.verify import accept_greedy, accept_sampled

FALSE_ALARM = 1e-4  # of each law test below, were its seed drawn anew; the seeds are fixed


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
    for q in (None, one_hot(drafts, vocab)):
        got = accept_sampled(one_hot(targets, vocab), q, drafts, u, v, counts)
        assert torch.equal(got.accepted, want.accepted)
        assert torch.equal(got.token, want.token)


def test_a_draft_with_the_target_s_own_law_is_always_kept() -> None:
    g = torch.Generator().manual_seed(3)
    p = torch.rand(500, 5, 9, generator=g).softmax(-1)
    drafts = draw(p[:, :4], torch.rand(500, 4, generator=g).double())
    u, v = torch.rand(500, 4, generator=g).double(), torch.rand(500, 5, generator=g).double()
    assert accept_sampled(p, p[:, :4], drafts, u, v).accepted.min() == 4


def test_a_one_hot_draft_is_a_certain_law() -> None:
    g = torch.Generator().manual_seed(4)
    p = torch.rand(300, 4, 6, generator=g).softmax(-1)
    drafts = torch.randint(0, 6, (300, 3), generator=g)
    u, v = torch.rand(300, 3, generator=g).double(), torch.rand(300, 4, generator=g).double()
    counts = torch.randint(0, 4, (300,), generator=g)
    short = accept_sampled(p, None, drafts, u, v, counts)
    full = accept_sampled(p, one_hot(drafts, 6), drafts, u, v, counts)
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

    def speculate(self, n: int, k: int, seed: int, *, certain: bool, ragged: bool, residual: bool) -> Tensor:
        """Counts [vocab ** 3] of the first three tokens of n speculative decodes."""
        g = torch.Generator().manual_seed(seed)
        out, length = torch.zeros(n, 3 + k, dtype=torch.long), torch.zeros(n, dtype=torch.long)
        last = torch.zeros(n, dtype=torch.long)
        rows = torch.arange(n)
        for _ in range(3):  # each step gives at least one token
            chain, laws = [last], []
            for _ in range(k):
                law = one_hot(self.p[chain[-1]].argmax(-1), self.vocab) if certain else self.q[chain[-1]]
                laws.append(law)
                chain.append(draw(law, torch.rand(n, generator=g).double()))
            path = torch.stack(chain, 1)
            counts = torch.randint(0, k + 1, (n,), generator=g) if ragged else None
            got = accept_sampled(
                self.p[path],
                None if certain else torch.stack(laws, 1),
                path[:, 1:],
                torch.rand(n, k, generator=g).double(),
                torch.rand(n, k + 1, generator=g).double(),
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
def test_output_has_the_target_s_law(k: int, certain: bool, ragged: bool) -> None:
    """Joint law of three tokens, 30 000 draws, seed 7, false alarm 1e-4; and it fails without the residual."""
    chain = Chain(8, seed=11)
    seen = chain.speculate(30_000, k, 7, certain=certain, ragged=ragged, residual=True)
    assert law_p_value(seen, chain.joint()) > FALSE_ALARM
    broken = chain.speculate(30_000, k, 7, certain=certain, ragged=ragged, residual=False)
    assert law_p_value(broken, chain.joint()) < 1e-12
