"""`evalkit catalogue check | spec`: ATOM's accuracy catalogues, checked, and made into gate specifications."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalkit.commands import PLAIN
from evalkit.errors import EvalkitError

app = typer.Typer(help="Accuracy catalogues in ATOM's format.", **PLAIN)


@app.command("check", short_help="Read catalogues strictly.")
def check(
    files: Annotated[list[Path], typer.Argument(help="Catalogues.", metavar="FILE...")],
) -> None:
    """Read catalogues strictly, and remark on bars that can't fail or can't pass. Exits 2 when one is unsound."""
    from evalkit.ci.catalogue import read_catalogue, remarks
    from evalkit.layout import say

    broken = 0
    for path in files:
        try:
            entries = read_catalogue(path)
        except EvalkitError as e:
            broken += 1
            say(f"unsound: {e.what}")
            continue
        say(f"{path.name}: {len(entries)} entries, {sum(e.drafts for e in entries)} with a draft")
        for entry in entries:
            for said in remarks(entry):
                say(f"  {entry.name} {said}")
    if broken:
        raise EvalkitError(f"{broken} of {len(files)} catalogues are unsound", "see above")


@app.command("spec")
def spec(
    file: Annotated[Path, typer.Argument(help="A catalogue.", metavar="FILE")],
    name: Annotated[str, typer.Argument(help="The entry's model_name.", metavar="NAME")],
    run: Annotated[str, typer.Option("--run", help="Run to judge, or a glob of ids.  [default: by the model]")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file.  [default: print it]")] = None,
) -> None:
    """Print a catalogue's entry as a gate specification."""
    from evalkit.ci.catalogue import find_entry, read_catalogue
    from evalkit.ci.spec import spec_text
    from evalkit.files import write_text

    text = spec_text(find_entry(read_catalogue(file), name), run, source=file.name)
    if output is None:
        print(text, end="")
    else:
        print(f"specification: {write_text(output, text)}")
