"""The command line: it joins the commands of `evalkit.commands`, and says in two lines what went wrong.

Exit codes: 0 pass, 1 fail, 2 error, 3 inconclusive; 130 and 143 after Ctrl-C and SIGTERM. A command's file parses,
calls, prints and exits; nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from engine.errors import EngineError
from evalkit.commands import PLAIN, baseline, catalogue, certificate, ci, gate, golden, report, run, runs, serve
from evalkit.errors import EvalkitError
from evalkit.layout import say

UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's; newer typers bring their own
app = typer.Typer(
    help="Evaluate a target with its speculative decoding draft: accuracy, accepted length, verdict.", **PLAIN
)
app.command(short_help="Run one setting, judge it and write its report.")(run.run)
app.command(short_help="Judge stored runs, or a specification.")(gate.gate)
app.command(short_help="Write the HTML report of stored runs.")(report.report)
app.command("list")(runs.list_runs)
app.command(short_help="Show one stored run as text.")(runs.show)
app.command(short_help="Serve the engine as OpenAI does.")(serve.serve)
app.add_typer(golden.app, name="golden")
app.add_typer(baseline.app, name="baseline")
app.add_typer(certificate.app, name="certificate")
app.add_typer(ci.app, name="ci")
app.add_typer(catalogue.app, name="catalogue")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code. What the user can mend is two lines, never a traceback."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        code = app(args=words, prog_name="evalkit", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageError as e:
        return _usage_error(e, words)
    except typer.Abort:  # Ctrl-C or the end of the input at a question
        print("interrupted: nothing was written", file=sys.stderr)
        return 130
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except (EngineError, EvalkitError) as e:
        say(f"error: {e.what}", sys.stderr)
        if e.fix:
            print(f"fix: {e.fix}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: stopped before it was done", file=sys.stderr)
        return 130
    except OSError as e:
        fix = "look at that file" if e.filename else "make room, or send what is printed somewhere else"
        print(f"error: {e.filename or 'the output'}: {e.strerror or e}\nfix: {fix}", file=sys.stderr)
        return 2
    except Exception as e:  # exit code 1 would read as a verdict
        print(f"error: {_whereabouts(e)}\nfix: this is a bug of evalkit; please report it", file=sys.stderr)
        return 2


def _usage_error(e: Any, words: Sequence[str]) -> int:
    """A command line that cannot be read: one line with what was found, one with where to look."""
    if type(e).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        e.show()
        return 2
    found = _value_of(getattr(e.param, "opts", ()), words) if isinstance(e, typer.BadParameter) else ""
    said = " ".join(e.format_message().split()).rstrip(".")
    command = e.ctx.command_path if e.ctx else "evalkit"
    print(f"error: {command}: {said[:1].lower()}{said[1:]}{f' (found {found!r})' if found else ''}", file=sys.stderr)
    print(f"fix: {command} --help lists what it takes", file=sys.stderr)
    return 2


def _value_of(options: Sequence[str], words: Sequence[str]) -> str:
    """What the command line gives an option: the word behind it, or behind its `=`. Given twice, the last counts."""
    found = ""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            found = value if equals else " ".join(words[i + 1 : i + 2])
    return found


def _whereabouts(e: Exception) -> str:
    """An unforeseen error in one line: what, and the file and line it came from."""
    import traceback

    last = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {' '.join(str(e).split())} (at {last.filename}:{last.lineno})"


if __name__ == "__main__":
    sys.exit(main())
