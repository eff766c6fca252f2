"""How long analysing takes: printed, and held to the promised limits. Slow: a loaded machine proves nothing."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

from evalkit import stats
from evalkit.audit.population import POPULATIONS

pytestmark = pytest.mark.slow


def _sweep(cells: int, n: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    out = []
    for _ in range(cells):
        hits, sizes = next(POPULATIONS[0].draw(rng, n, 1))
        out.append((rng.random(n) < 0.96, rng.random(n) < 0.96, hits, sizes))
    return out


def analyse(sweep: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]) -> tuple[float, ...]:
    p_values = []
    for y, r, hits, sizes in sweep:
        up, down, n = int((y & ~r).sum()), int((r & ~y).sum()), y.size
        stats.wilson(int(y.sum()), n)
        p_values.append(stats.tango_test(up, down, n, -0.01).p_above)
        stats.tango_interval(up, down, n)
        stats.mcnemar_exact(up, down)
        stats.mcnemar_midp(up, down)
        totals = hits.sum(axis=1)
        estimate = stats.clustered_ratio(totals, sizes, totals).estimate(offset=1.0)
        assert estimate is not None
        golden = stats.Estimate(value=4.0, se=0.1, df=79)
        stats.ratio_test(estimate, golden, 0.95)
        stats.ratio_interval(estimate, golden)
        histogram = -np.diff(np.column_stack([sizes, hits, np.zeros(n)]), axis=1)
        stats.simultaneous_band(hits, sizes, np.random.default_rng(1))
        covariance = 2 * stats.survival_covariance(histogram)
        stats.lost_test(hits.sum(axis=0) / sizes.sum() - 0.01, covariance, 0.2, 79, 0.05)
    return stats.holm(p_values)


def test_a_sweep_of_nine_cells_takes_less_than_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = _sweep(9, 1319)
    started, cpu = time.perf_counter(), time.process_time()
    analyse(sweep)
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    with capsys.disabled():
        print(f"\n9 cells x 1319 samples: {seconds:.2f} s, {used:.2f} s of CPU")
    assert used < 1


def test_a_million_samples_take_less_than_thirty_seconds_and_a_gigabyte(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = _sweep(1, 1_000_000)
    started, cpu = time.perf_counter(), time.process_time()
    analyse(sweep)
    y = sweep[0][0]
    stats.repeated_mean(y, np.arange(y.size) // 4)
    stats.SequentialPaired(0.01).replay(y[None, :100_000].astype(int) - sweep[0][1][None, :100_000])
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    with capsys.disabled():
        print(f"\n1,000,000 samples: {seconds:.1f} s, {used:.1f} s of CPU, peak {peak:.2f} GB, making them included")
    assert used < 30 and peak < 1
