"""docs/real-servers.md, from what the last `make test-servers` found. Nothing in it is typed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INTRO = """\
# Against real servers

Made by `make test-servers ARGS=--write`. Servers that nobody here wrote ran on a CPU, each asked by `evalkit run`.
`page` is what the server's own counters say, read by the official parser, with the probes of evalkit in it where the
server counts them.
"""
HEAD = ("what ran", "model", "K", "questions", "strict-match", "accepted length", "accepted in steps", "read from",
        "page", "seconds")  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(x) for x in line) + " |" for line in lines)


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of stored rows."""
    return table(HEAD, [
        (r["what"], r["model"], r["k"], r["questions"], f"{r['right']}/{r['questions']}", r["length"],
         f"{r['accepted']} in {r['steps']}" if r["k"] else "", r["source"], r["page"], r["seconds"])
        for r in rows
    ])  # fmt: skip


def markdown(found: Mapping[str, Any]) -> str:
    """The page of stored results."""
    parts = [INTRO]
    for case in found["cases"]:
        parts.append(f"## {case['title']}\n\n{case['about']}\n")
        if case["skipped"]:
            parts.append(f"SKIP: {case['skipped']}\n")
            continue
        parts.append(rows_table(case["rows"]) + "\n")
        if case["lines"]:
            parts.append("\n".join(f"- {line}" for line in case["lines"]) + "\n")
        if case["verdict"]:
            parts.append("```\n" + "\n".join(case["verdict"]) + "\n```\n")
    return "\n".join(parts)
