"""The Markov chain, a draw and the two accept rules against engine/sampling.py and engine/verify.py."""

from __future__ import annotations

import pytest
import torch

from engine import verify
from engine.kernels import block_rule, reference, sample


@pytest.mark.parametrize(("n", "k", "vocab", "rank"), [(1, 1, 16, 16), (3, 7, 300, 40), (17, 3, 129, 16)])
def test_the_greedy_chain_is_the_twins(
    n: int, k: int, vocab: int, rank: int, device: torch.device, generator: torch.Generator
) -> None:
    """Whole numbers: sums are exact, and there are ties, which go to the lowest id."""
    base = torch.randint(-3, 4, (n, k, vocab), generator=generator).float().to(device)
    w_in, w_out = (torch.randint(-1, 2, (vocab, rank), generator=generator).float().to(device) for _ in range(2))
    anchors = torch.randint(0, vocab, (n,), generator=generator).to(device)
    found = sample.markov_greedy(base, anchors, w_in, w_out)
    assert found.equal(reference.markov_greedy(base, anchors, w_in, w_out))


def test_a_tie_goes_to_the_lowest_id_and_a_nan_wins_as_in_argmax(device: torch.device) -> None:
    base = torch.zeros(2, 1, 200, device=device)
    base[0, 0, [150, 20, 90]] = 4.0
    base[1, 0, [5, 170]] = torch.nan
    w = torch.zeros(200, 16, device=device)
    anchors = torch.zeros(2, dtype=torch.int64, device=device)
    assert sample.markov_greedy(base, anchors, w, w).tolist() == [[20], [5]]
    assert reference.markov_greedy(base, anchors, w, w).tolist() == [[20], [5]]


def test_markov_logits_are_the_twins(device: torch.device, generator: torch.Generator) -> None:
    base, w_in, w_out = (torch.randn(*s, generator=generator).to(device) for s in ((5, 77), (77, 24), (77, 24)))
    previous = torch.randint(0, 77, (5,), generator=generator).to(device)
    found = sample.markov_logits(base, previous, w_in, w_out)
    torch.testing.assert_close(found, reference.markov_logits(base, previous, w_in, w_out), atol=1e-5, rtol=1e-5)


def test_a_latent_takes_the_place_of_the_embedding(device: torch.device, generator: torch.Generator) -> None:
    """As gated and recurrent heads have it: more rows than one tile, one slot out of several, in whole numbers."""
    n, vocab, rank = 20, 150, 24
    base = torch.randint(-3, 4, (n, 3, vocab), generator=generator).float().to(device)
    latent, w_out = (torch.randint(-1, 2, (r, rank), generator=generator).float().to(device) for r in (n, vocab))
    rows = torch.arange(n, device=device)
    for i in range(3):
        wanted = base[:, i] + latent @ w_out.T
        assert sample.markov_logits(base[:, i], rows, latent, w_out).equal(wanted)
        for entry in (sample, reference):
            assert entry.markov_greedy(base[:, i : i + 1], rows, latent, w_out).equal(wanted.argmax(-1, keepdim=True))


@pytest.mark.parametrize("vocab", [3, 64, 3000])
def test_draws_are_the_twins(vocab: int, device: torch.device, generator: torch.Generator) -> None:
    weights = torch.rand(20, vocab, generator=generator)
    weights[torch.rand(20, vocab, generator=generator) < 0.4] = 0.0
    weights[:, 1] = 0.5
    u = torch.rand(20, dtype=torch.float64, generator=generator)
    u[0], u[1] = 0.0, 1.0 - 2.0**-53
    found = sample.draw(weights.to(device), u.to(device)).cpu()
    assert found.equal(reference.draw(weights, u))
    assert (weights[torch.arange(20), found] > 0).all()


@pytest.mark.parametrize("k", [1, 3, 7])
def test_greedy_acceptance_is_the_twins(k: int, device: torch.device, generator: torch.Generator) -> None:
    n = 70
    targets = torch.randint(0, 2, (n, k + 1), generator=generator).to(device)
    drafts = torch.randint(0, 2, (n, k), generator=generator).to(device)
    drafts[:9] = targets[:9, :-1]
    counts = torch.randint(0, k + 1, (n,), generator=generator).to(device)
    accepted, token = sample.accept_greedy(targets, drafts, counts)
    expected = verify.accept_greedy(targets, drafts, counts)
    assert accepted.equal(expected.accepted)
    assert token.equal(expected.token)


RULES = {
    "standard": (sample.accept_sampled, verify.accept_sampled),
    "block": (block_rule.accept_block, verify.accept_block),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(("k", "vocab"), [(1, 5), (3, 12), (7, 2100)])
def test_sampled_acceptance_is_the_twins(
    k: int, vocab: int, one_hot: bool, rule: str, device: torch.device, generator: torch.Generator
) -> None:
    """Given uniforms, so no draw here is random: equal tokens, not equal laws."""
    n = 24
    q = (2 * torch.randn(n, k, vocab, generator=generator)).softmax(-1)
    p = (2 * torch.randn(n, k + 1, vocab, generator=generator)).softmax(-1)
    p[:8, :-1] = q[:8]  # no residual at all
    drafts = q.argmax(-1)
    counts = torch.randint(0, k + 1, (n,), generator=generator)
    counts[:12] = k
    u_accept = torch.rand(n, k, dtype=torch.float64, generator=generator)
    u_accept[::3] *= 1e-3  # keep most
    u_token = torch.rand(n, k + 1, dtype=torch.float64, generator=generator)
    p, q, drafts, u_accept, u_token, counts = (x.to(device) for x in (p, q, drafts, u_accept, u_token, counts))
    law = None if one_hot else q
    kernel, twin = RULES[rule]
    accepted, token = kernel(p, law, drafts, u_accept, u_token, counts, verify.MIN_MASS)
    expected = twin(p, law, drafts, u_accept, u_token, counts)
    assert accepted.equal(expected.accepted)
    assert token.equal(expected.token)
    assert 0 < int(accepted.sum()) < n * k
