"""evalkit list and show."""

import json
import shutil

from evalkit.cli import main
from evalkit.listing import layouts
from tests.evalkit.goldens import make_run, with_cell
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


def test_a_bad_folder_takes_no_good_run_down(place, capsys):
    main([*RUN, "--no-gate", "--no-report"])
    name = the_run(place)
    good = place / "runs" / name
    shutil.copytree(good, place / "runs" / "renamed")
    for folder, text in (("empty", ""), ("list", "[]"), ("binary", "\xff")):
        (place / "runs" / folder).mkdir()
        (place / "runs" / folder / "run.json").write_text(text, encoding="latin-1")
    cut = shutil.copytree(good, place / "runs" / "cut")
    (cut / "samples.jsonl").unlink()
    capsys.readouterr()
    assert main(["list"]) == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())
    assert name in out and "renamed" in out and "empty" not in out
    for folder in ("empty", "list", "binary", "cut", "renamed"):
        assert f"runs/{folder}: " in err, folder
    assert f"2 folders hold run {name}" in err and f"it holds run {name}" in err
    shutil.rmtree(good)
    shutil.rmtree(place / "runs" / "renamed")
    assert main(["list"]) == 2 and "no run in runs can be read" in " ".join(capsys.readouterr().err.split())


def test_a_folder_of_runs_that_is_none_is_an_error(place, capsys):
    for word, said in (("nonexist", "there is no folder nonexist"), ("test.jsonl", "is a file, expected a folder")):
        assert main(["list", "--runs-dir", word]) == 2
        assert said in (err := capsys.readouterr().err) and "fix: " in err


def test_a_twin_says_its_layout(place, capsys):
    main([*RUN, "--no-gate", "--no-report"])
    capsys.readouterr()
    assert main(["list"]) == 0 and "batch=" not in capsys.readouterr().out
    main([*RUN, "--no-gate", "--no-report", "--batch", "2", "--fresh"])
    capsys.readouterr()
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "layout" in out and "batch=64" in out and "batch=2" in out and "TP" not in out
    shown = []
    for folder in (place / "runs").iterdir():
        main(["show", folder.name])
        shown.append(next(line.split() for line in capsys.readouterr().out.splitlines() if "batch" in line))
    assert sorted(shown) == [["batch", "2"], ["batch", "64"]]


def test_a_server_s_concurrency_and_tp_tell_twins_apart():
    runs = [with_cell(make_run(), max_batch=64, tp=1, server={"concurrency": c, "tp": tp}) for c, tp in
            ((16, 4), (64, 4), (64, 8))]  # fmt: skip
    assert layouts(runs) == ["TP=4 concurrency=16", "TP=4 concurrency=64", "TP=8 concurrency=64"]
    assert layouts(runs[:2]) == ["concurrency=16", "concurrency=64"] and layouts(runs[:1]) == [""]
