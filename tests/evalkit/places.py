"""What a run needs on disk, as small as it can be: checkpoints that are only hashed, and questions."""

from __future__ import annotations

import json
from pathlib import Path

CLI_QUESTIONS = 6
RUN = ["run", "--model", "target", "--draft", "draft", "--data", "test.jsonl"]  # in a folder that make_place made


def make_checkpoints(folder: Path) -> Path:
    """`target` and `draft` in a folder, for runs whose engine is scripted."""
    for name in ("target", "draft"):
        (folder / name).mkdir()
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (folder / name / file).write_text("{}")
    return folder


def make_place(folder: Path, questions: int, answer: str = "It is {i} + 1 = {n} .\n#### {n}") -> Path:
    """Checkpoints, and `test.jsonl` with this many questions: what is i + 1?"""
    rows = [{"question": f"{i} + 1?", "answer": answer.format(i=i, n=i + 1)} for i in range(questions)]
    (folder / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return make_checkpoints(folder)


def the_run(place: Path) -> str:
    """The id of a run in a folder where one was made."""
    return next((place / "runs").iterdir()).name
