"""evalkit gate on runs that were made here."""

import json

import pytest

from evalkit.cli import main
from evalkit.records import Check, Outcome, Verdict
from tests.evalkit.places import RUN, the_run


def test_gate_judges_a_stored_run(place, verdict, capsys):
    main([*RUN, "--no-gate", "--no-report"])
    for outcome, code in ((Outcome.PASS, 0), (Outcome.FAIL, 1), (Outcome.INCONCLUSIVE, 3)):
        verdict(outcome)
        assert main(["gate", the_run(place)]) == code
    capsys.readouterr()
    assert main(["gate", f"runs/{the_run(place)}", "--json", "-"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "inconclusive" and found["verdicts"][0]["checks"][0]["numbers"] == {"n": 1}


def test_a_real_verdict_on_six_samples_is_no_pass(place, capsys):
    assert main([*RUN, "--no-report"]) in (1, 3)
    assert "verdict: PASS" not in capsys.readouterr().out


def test_gate_of_several_runs_is_one_table_and_the_worst_code(place, verdict, capsys):
    for seed in ("0", "1"):
        main([*RUN, "--no-gate", "--no-report", "--seed", seed])
    runs = sorted(p.name for p in (place / "runs").iterdir())

    def judged(run, **words):
        worst = Outcome.FAIL if run.id == runs[0] else Outcome.PASS
        check = Check(name="accuracy", outcome=worst, expected="e", found="f", message="all", numbers={"p": 0.01})
        return Verdict(outcome=worst, checks=(check,), run_id=run.id)

    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evalkit.judging.judge", judged)
        assert main(["gate", *runs]) == 1
        out = capsys.readouterr().out
        assert all(word in out for word in ("accuracy p", "length p", "Holm p", "0.01", "0.02", "fail", *runs))
        assert main(["gate", *runs, "--json", "-"]) == 1
        found = json.loads(capsys.readouterr().out)["verdicts"]
        assert [v["outcome"] for v in found] == ["fail", "pass"] and found[1]["run_id"] == runs[1]
        assert found[1]["checks"][-1]["numbers"]["p_adjusted"] == 0.02
        assert main(["gate", runs[1], runs[1]]) == 2
        capsys.readouterr()
        assert main(["gate", *runs, "--in-order"]) == 1
        out = capsys.readouterr().out
        assert "in order" in out and "Holm p" not in out and f"{runs[0]} before it did not pass" in out
        assert main(["gate", runs[1], "--in-order"]) == 2 and main(["gate", *runs, "--in-order", "--repeats"]) == 2
