"""Where `evalkit gate` writes its verdict besides the terminal: the options, and what is done with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalkit.errors import EvalkitError

if TYPE_CHECKING:
    from evalkit.records import Run, Verdict

STDOUT = Path("-")
PRINTABLE = ("json", "junit", "summary")  # each one text
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # where GitHub says a step's summary is
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write JSON; - prints it alone.", metavar="FILE")]
JunitFile = Annotated[
    Path | None, typer.Option("--junit", help="Write JUnit XML (inconclusive: a failure); - as --json.", metavar="FILE")
]
SummaryFile = Annotated[
    Path | None, typer.Option("--summary", help="Write a markdown summary; - as --json.", metavar="FILE")
]
StepSummary = Annotated[bool, typer.Option("--step-summary", help=f"Add the summary to ${STEP_SUMMARY}.")]
Annotations = Annotated[bool, typer.Option("--annotations", help="Print GitHub annotations to stderr.")]
BenchmarkFile = Annotated[
    Path | None,
    typer.Option("--benchmark", help="Write github-action-benchmark's JSON, and FILE.smaller.", metavar="FILE"),
]
LmEvalDir = Annotated[Path | None, typer.Option("--lm-eval", help="Write lm-eval's own result files.", metavar="DIR")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files a gate is to write. Made before anything is judged, so that an old file never outlives an error."""

    json: Path | None = None
    junit: Path | None = None
    summary: Path | None = None
    step_summary: bool = False
    annotations: bool = False
    benchmark: Path | None = None
    lm_eval: Path | None = None

    def __post_init__(self) -> None:
        """Refuses what can't be written and removes what an earlier gate wrote there."""
        from evalkit.outputs.benchmark import smaller_path
        from evalkit.outputs.lm_eval_files import clear_all
        from evalkit.runfile import RUN_FILE, SAMPLES_FILE

        if self.step_summary and not os.environ.get(STEP_SUMMARY):
            raise EvalkitError(f"--step-summary, and ${STEP_SUMMARY} is not set", "give --summary FILE outside GitHub")
        if len(printed := self._printed) > 1:
            raise EvalkitError(f"{' and '.join(f'--{name} -' for name in printed)}: standard output has room for one",
                               "give the others a file")  # fmt: skip
        if odd := [name for name in ("benchmark", "lm-eval") if getattr(self, name.replace("-", "_")) == STDOUT]:
            raise EvalkitError(f"--{odd[0]} - : it writes several files, which standard output can't hold",
                               f"give a {'folder' if odd[0] == 'lm-eval' else 'file'}")  # fmt: skip
        files = [path for path in (self.json, self.junit, self.summary, self.benchmark) if path and path != STDOUT]
        if self.benchmark:
            files.append(smaller_path(self.benchmark))
        if len({path.absolute() for path in files}) < len(files):
            raise EvalkitError("two outputs have one file", "give each its own")
        for path in files:
            if path.is_dir() or (path.name in (RUN_FILE, SAMPLES_FILE) and path.exists()):
                what = "a folder" if path.is_dir() else "part of a stored run"
                raise EvalkitError(f"{path} is {what}, not a file for a verdict", "give another file")
            if path.suffix in (".yaml", ".yml"):
                raise EvalkitError(f"{path} ends as a specification does, which an output would replace",
                                   "give a file with another ending")  # fmt: skip
        for path in files:
            path.unlink(missing_ok=True)
        if self.lm_eval:
            clear_all(self.lm_eval)

    @property
    def alone(self) -> bool:
        """Whether one of the outputs goes to standard output, where nothing else may."""
        return bool(self._printed)

    @property
    def _printed(self) -> list[str]:
        return [name for name in PRINTABLE if getattr(self, name) == STDOUT]

    def write(self, verdicts: Sequence[Verdict], runs: Sequence[Run]) -> None:
        """Writes what was asked for, and says on stderr what was not written and why."""
        from evalkit import outputs

        if self.json and self.json != STDOUT:
            outputs.write_json(verdicts, runs, self.json)
        if self.junit and self.junit != STDOUT:
            outputs.write_junit(verdicts, runs, self.junit)
        if self.summary and self.summary != STDOUT:
            outputs.write_summary(verdicts, runs, self.summary)
        if self.step_summary:
            outputs.append_summary(verdicts, runs, Path(os.environ[STEP_SUMMARY]))
        if self.annotations:
            print("\n".join(outputs.annotation_lines(verdicts, runs)), file=sys.stderr)
        if self.benchmark:
            outputs.write_benchmark(verdicts, runs, self.benchmark)
        if self.lm_eval:
            for said in outputs.write_lm_eval(verdicts, runs, self.lm_eval):
                print(said, file=sys.stderr)
        texts = {"json": outputs.document_text, "junit": outputs.junit_text, "summary": outputs.summary_text}
        for name in self._printed:
            sys.stdout.write(texts[name](verdicts, runs))
