"""evalkit list and show."""

import json

from evalkit.cli import main
from tests.evalkit.places import RUN, the_run


def test_list_and_show(place, capsys):
    assert main(["list"]) == 0
    assert "no runs in runs" in capsys.readouterr().out
    main([*RUN, "--no-gate", "--no-report"])
    capsys.readouterr()
    assert main(["list"]) == 0 and f"{the_run(place)}" in (out := capsys.readouterr().out) and "6/6" in out
    assert main(["show", the_run(place)]) == 0 and "strict-match" in capsys.readouterr().out
    assert main(["show", the_run(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"]["k"] == 7
