"""evalkit golden record."""

import json

from evalkit.cli import main
from tests.evalkit.places import RUN, the_run


def test_golden_needs_something_to_record(place, capsys):
    assert main(["golden", "record"]) == 2
    assert "neither a stored run nor --k" in capsys.readouterr().err
    main([*RUN, "--no-gate", "--no-report", "--limit", "3"])
    assert main(["golden", "record", the_run(place), "-o", "g.yaml", "--yes"]) == 2  # a subset is no golden
    assert "3 of 6 samples: no golden" in capsys.readouterr().err


def test_golden_records_a_run(place, capsys):
    main([*RUN, "--no-gate", "--no-report"])
    assert main(["golden", "record", the_run(place), "-o", "g.yaml", "--yes"]) == 0
    assert "recorded: g.yaml" in capsys.readouterr().out
    assert main(["gate", the_run(place), "--golden", "g.yaml", "--json", "-"]) in (1, 3)
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["verdicts"][0]["checks"]}
    assert "no golden" not in checks["accepted length"]["message"]
