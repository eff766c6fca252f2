"""C69: a server that takes the likeliest token whatever the temperature is found out before the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalkit.errors import EvalkitError
from evalkit.run import run_cell
from tests.servers.conftest import cell_of


def sampling_of(run):
    return run.provenance["served"]["sampling"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_c69_answers_at_temperature_1_that_are_all_the_same_refuse_a_sampled_run(faulty, sums, tmp_path, engine):
    server = faulty(argmax=True)
    greedy = cell_of(server, sums(4), engine=engine)
    run = run_cell(greedy, runs_dir=tmp_path / "runs")
    assert sampling_of(run)["different"] == 1
    assert any("sampling is not applied" in n and "no evidence for sampled" in n for n in run.provenance["notes"])
    with pytest.raises(EvalkitError, match=r"8 answers at temperature 1.*all the same, and the run is at") as e:
        run_cell(replace(greedy, temperature=0.7), runs_dir=tmp_path / "runs")
    assert e.value.fix and "\n" not in str(e.value.what)


def test_c69_a_server_that_samples_is_told_by_its_numbers_alone(faulty, sums, tmp_path):
    server = faulty()
    run = run_cell(cell_of(server, sums(4)), runs_dir=tmp_path / "runs")
    assert sampling_of(run) == {"temperature": 1.0, "asked": 8, "different": 8, "same_seed_same_text": True}
    assert not any("sampl" in n for n in run.provenance["notes"])
