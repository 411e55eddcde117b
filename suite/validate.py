"""Command line: `python -m suite validate`, which checks record files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from suite.records.command_line import FAILED, BadOption, errors_told, printable
from suite.records.store import NotARecord, load_record


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The record files at some paths, each once: files themselves, and `records/*.json` in and below directories.

    Raises:
        BadOption: at one of the paths there is none.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        below = sorted(file for file in path.rglob("*.json") if file.absolute().parent.name == "records")
        here = [path] if path.is_file() else below
        if not here:
            raise BadOption(
                f"{path} is no file, and has no JSON file in a folder named records: name the results directory of a "
                "run, or record files themselves"
            )
        files |= {file.absolute(): file for file in here}
    return list(files.values())


def check_files(paths: Iterable[Path]) -> dict[Path, tuple[str, ...]]:
    """Findings in record files; none in those that load."""
    checked: dict[Path, tuple[str, ...]] = {}
    for path in paths:
        try:
            load_record(path)
            checked[path] = ()
        except NotARecord as error:
            checked[path] = error.findings
    return checked


def validate_command(
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Record files, or directories with records/*.json in or below them; default: results"),
    ] = None,
) -> None:
    """Load records, and say what is wrong with file and field.

    Every file has to fit the models of records and their rules, which hold wherever the suite loads one: every field is
    there and of its type, nobody edited a configuration, turns are as many as asked for and took time, counts add up,
    and a file has the name of its record.

    Examples: `python -m suite validate`; `python -m suite validate results/published`.

    The exit code is 0 where every record is valid, 1 where one is not, 2 for a wrong option or a path without records.
    """
    with errors_told():
        checked = check_files(find_files(paths or [Path("results")]))
        for path, problems in checked.items():
            for problem in problems:
                typer.echo(printable(f"{path}: {problem}"))
        invalid = sum(map(bool, checked.values()))
        typer.echo(
            f"{len(checked)} record{'s' if len(checked) > 1 else ''}: {len(checked) - invalid} valid"
            + (f", {invalid} invalid" if invalid else "")
        )
    if invalid:
        raise typer.Exit(FAILED)
