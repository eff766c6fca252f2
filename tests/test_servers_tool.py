"""tools/test_servers.py: what it refuses to believe. Nothing is installed or started here."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import test_servers as tool


def stored(monkeypatch: pytest.MonkeyPatch, *, tokens: int = 40, error: str = "", **counts: Any) -> None:
    """A stored run of two answers with the given acceptance."""
    found = {"steps": 10, "accepted": 12, "accepted_length": 2.2, "source": "counters", "problems": (), **counts}
    samples = [SimpleNamespace(tokens=tokens // 2, error=error)] * 2
    monkeypatch.setattr("evalkit.store.load_run", lambda path: SimpleNamespace(samples=samples))
    monkeypatch.setattr("evalkit.acceptance.of_run", lambda run: SimpleNamespace(**found))


def test_counts_that_agree_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stored(monkeypatch)
    assert "2.200 (12 drafts in 10 verify steps" in tool.compare(Path("run"), steps=11, accepted=13, limit=2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"steps": 0}, "evalkit has 12 accepted in 0 steps"),
        ({"accepted": 0}, "evalkit has 0 accepted"),
        ({"steps": 12}, "the page 13 in 11"),
        ({"accepted": 14}, "evalkit has 14 accepted"),
        ({"tokens": 14}, "do not fit in 14 tokens"),
        ({"error": "500"}, "2 failed: 500"),
        ({"problems": ("half of the ranks are silent",)}, "half of the ranks are silent"),
    ],
)
def test_counts_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], said: str) -> None:
    stored(monkeypatch, **more)
    with pytest.raises(tool.Failed, match=said):
        tool.compare(Path("run"), steps=11, accepted=13, limit=2)


def test_a_missing_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stored(monkeypatch)
    with pytest.raises(tool.Failed, match="2 of 3 samples"):
        tool.compare(Path("run"), steps=11, accepted=13, limit=3)


def test_a_wheel_s_needs_are_read_for_this_machine(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    lines = ["Name: a", "Requires-Dist: torch==2.13.0+cpu", "Requires-Dist: numpy<3,>=2",
             'Requires-Dist: other; sys_platform == "nowhere"', 'Requires-Dist: more; extra == "x"']  # fmt: skip
    with zipfile.ZipFile(wheel, "w") as out:
        out.writestr("a-1.dist-info/METADATA", "\n".join(lines) + "\n\n")
    needs = tool.requirements(wheel)
    assert [tool.name_of(n) for n in needs] == ["torch", "numpy"] and needs[0] == "torch==2.13.0+cpu"


def test_a_server_that_dies_at_its_start_is_named(tmp_path: Path) -> None:
    dead = tool.Server("dead", ("sh", "-c", "exit 5"), {})
    with (
        pytest.raises(tool.Failed, match=r"dead ended while it started \(exit 5\)"),
        tool.started(dead, "http://127.0.0.1:9", tmp_path / "log", 30),
    ):
        pass
