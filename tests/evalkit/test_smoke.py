"""C76: a healthy server whose answers are wrong is seen after a few of them."""

from __future__ import annotations

import numpy as np
import pytest

from evalkit.errors import EvalkitError
from evalkit.golden import published
from evalkit.records import Sample
from evalkit.smoke import LOOKS, Smoke, smoke_of


def sample(right, error=""):
    scores = {} if error else {"strict-match": float(right)}
    return Sample(doc_id=0, doc_hash="", prompt_hash="", question="", gold="", scores=scores, error=error)


def ended(rate, rng, expected=0.94):
    """The answer at which a server with this share of right answers is stopped; 0 where it is not."""
    smoke = Smoke(expected=expected, source="the baseline")
    for n in range(1, LOOKS[-1] + 1):
        try:
            smoke.take(sample(rng.random() < rate))
        except EvalkitError:
            return n
    return 0


@pytest.mark.stat
def test_how_often_a_good_and_a_broken_server_are_stopped():
    """Seed 76. 4000 servers that are just good enough: 3 looks at 0.001 end 12 of them at most on average, more than 30
    with probability under 1e-5. 1000 broken ones (0.6): 9 of 10 by the 32nd answer; under 850 with one under 1e-6."""
    rng = np.random.default_rng(76)
    assert sum(ended(0.94, rng) > 0 for _ in range(4000)) <= 30
    assert sum(ended(0.6, rng) > 0 for _ in range(1000)) >= 850


def test_an_answer_that_is_never_right_ends_at_the_first_look():
    smoke = Smoke(expected=0.95, source="the published sglang")
    for _ in range(7):
        smoke.take(sample(0))
    smoke.take(sample(0, error="timed out"))
    with pytest.raises(EvalkitError, match="0 of the first 8 answers are right, the published sglang lets expect 95%"):
        smoke.take(sample(0))


def test_what_is_expected_is_the_baseline_else_the_lowest_published_score_of_the_same_target():
    known = {"task": "gsm8k_inferencex", "references": published(), "margin": 0.01}
    one = smoke_of(target="MiniMax-M3.1-Flash", baseline=None, **known)
    assert one is not None and one.source == "the published sglang" and one.expected == pytest.approx(0.9498)
    two = smoke_of(target="x", baseline=0.7, **known)
    assert two is not None and two.expected == pytest.approx(0.69)
    assert smoke_of(target="x", baseline=None, **known) is None
