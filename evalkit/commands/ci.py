"""`evalkit ci plan EVENT.json`: which jobs an event starts, and why. Exits 0, or 2 where the event can't be read."""

from __future__ import annotations

import json as json_
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalkit.commands import PLAIN
from evalkit.errors import EvalkitError

if TYPE_CHECKING:
    from evalkit.ci.rules import Plan

app = typer.Typer(help="Continuous integration: what runs, and why.", **PLAIN)


@app.callback()
def group() -> None:
    """Keeps `plan` a word of its own: a group of one command would be that command."""


@app.command("plan", short_help="Say which jobs an event starts, and why.")
def plan(
    file: Annotated[Path, typer.Argument(help="GitHub's event payload.", metavar="EVENT")],
    event: Annotated[str, typer.Option("--event", help="The event's name.", envvar="GITHUB_EVENT_NAME")] = "",
    reviews: Annotated[Path | None, typer.Option("--reviews", help="API answer: the reviews.", metavar="FILE")] = None,
    files: Annotated[Path | None, typer.Option("--files", help="API answer: changed files.", metavar="FILE")] = None,
    family: Annotated[
        list[str] | None,
        typer.Option("--family", help="A heavy job, by its label ci:NAME.  [default: atom, vllm, sglang]"),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Add the plan to $GITHUB_OUTPUT.")] = None,
) -> None:
    """Say which jobs an event starts and why, from labels, approvals and what changed."""
    from evalkit import layout
    from evalkit.ci import rules
    from evalkit.ci.event import read_event, read_files, read_reviews

    found = rules.plan(
        read_event(file, event),
        reviews=read_reviews(reviews) if reviews else None,
        files=read_files(files) if files else None,
        families=_names(family) if family else rules.FAMILIES,
    )
    if output:
        try:
            with output.open("a", encoding="utf-8") as opened:
                opened.write(output_text(found))
        except OSError as e:
            raise EvalkitError(f"cannot write {output} ({e.strerror})", "give the file of $GITHUB_OUTPUT") from None
    for d in found.decisions:
        words = f"{d.reason}: {rules.REASONS[d.reason]}"
        print(layout.fold(words, layout.window(), f"{d.job:<10} {'run' if d.run else 'no':<4} "))
    print(layout.fold(", ".join(found.levels), layout.window(), "levels     "))


def _names(words: Sequence[str]) -> tuple[str, ...]:
    """Families that can be names of outputs and labels: small letters, digits and dashes, each once."""
    if bad := [word for word in words if not re.fullmatch(r"[a-z][a-z0-9-]*", word) or words.count(word) > 1]:
        raise EvalkitError(f"--family {bad[0]!r}, expected names like atom, each once", "give --family atom ...")
    return tuple(words)


def output_text(found: Plan) -> str:
    """The plan as step outputs: one yes or no and reason for each job, the heavy jobs and levels as JSON lists.
    No text of the event's own is in it."""
    lines = [f"{d.job}={'true' if d.run else 'false'}\n{d.job}-reason={d.reason}" for d in found.decisions]
    lists = {"families": list(found.families), "levels": list(found.levels)}
    return "\n".join([*lines, *(f"{name}={json_.dumps(value)}" for name, value in lists.items())]) + "\n"
