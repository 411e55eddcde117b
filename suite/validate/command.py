"""Command line: `python -m suite validate`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from suite.records.exits import FAILED, errors_told
from suite.records.options import BadOption
from suite.records.record import SCHEMA_VERSION
from suite.validate.files import Checked, check_files, find_files
from suite.validate.schema import Finding, schema_text

_DEFAULT = Path("results")
_MOST_SHOWN = 5
"""Findings of one file that are printed; --json has all."""


def validate_command(
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Record files, or directories with records/*.json in or below them; default: results"),
    ] = None,
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the JSON Schema of records, and nothing else")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, with every finding")] = False,
) -> None:
    """Check records against their published JSON Schema, and against themselves.

    Every file has to fit the schema. Then what no schema can say: nobody edited a configuration, turns are as many as
    asked for and took time, counts add up, no key repeats. Paths of a machine are warned of. Hidden folders are not
    entered.

    Examples: `python -m suite validate`; `python -m suite validate results/published`;
    `python -m suite validate --json my_results/records/*.json`; `python -m suite validate --print-schema`.

    The exit code is 0 where every record is valid, 1 where one is not, 2 for a wrong option or a path without records.
    """
    with errors_told(usage=BadOption):
        if print_schema and (paths or as_json):
            raise BadOption("--print-schema goes alone: leave out paths and other options")
        files = [] if print_schema else find_files(paths or [_DEFAULT])
    if print_schema:
        typer.echo(schema_text(), nl=False)
        return
    checked = check_files(files)
    if as_json:
        typer.echo(_as_json(checked))
    else:
        for line in _lines(checked):
            typer.echo(_printable(line))
    if not all(file.valid for file in checked):
        raise typer.Exit(FAILED)


def _lines(checked: Sequence[Checked]) -> Iterator[str]:
    for file in checked:
        yield from _of_file(f"{file.path}: ", file.problems)
        yield from _of_file(f"{file.path}: warning: ", file.warnings)
    valid = sum(file.valid for file in checked)
    summary = f"{len(checked)} record{'s' if len(checked) > 1 else ''}: {valid} valid"
    yield summary + (f", {len(checked) - valid} invalid" if valid < len(checked) else "")


def _of_file(head: str, findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings[:_MOST_SHOWN]:
        yield f"{head}{finding}"
    if len(findings) > _MOST_SHOWN:
        yield f"{head}and {len(findings) - _MOST_SHOWN} more"


def _as_json(checked: Sequence[Checked]) -> str:
    valid = sum(file.valid for file in checked)
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "records": len(checked),
            "valid": valid,
            "invalid": len(checked) - valid,
            "files": [
                {
                    "path": str(file.path),
                    "valid": file.valid,
                    "problems": [vars(finding) for finding in file.problems],
                    "warnings": [vars(finding) for finding in file.warnings],
                }
                for file in checked
            ],
        },
        indent=2,
    )


def _printable(line: str) -> str:
    """A line for a terminal, whatever the names of files and fields hold."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
