"""Command line: `python -m suite validate`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from suite.records.exits import FAILED, errors_told
from suite.records.record import SCHEMA_VERSION, Record
from suite.records.shown import printable
from suite.records.store import Finding
from suite.validate.files import Checked, check_files, find_files

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
    """Load records, and say what is wrong with file and field.

    Every file has to fit the models of records and their rules, which hold wherever the suite loads one: every field is
    there and of its type, nobody edited a configuration, turns are as many as asked for and took time, counts add up.
    Beside that a file has its own name, and no key repeats. Paths of a machine are warned of. Hidden folders are not
    entered.

    Examples: `python -m suite validate`; `python -m suite validate results/published`;
    `python -m suite validate --json my_results/records/*.json`; `python -m suite validate --print-schema`.

    The exit code is 0 where every record is valid, 1 where one is not, 2 for a wrong option or a path without records.
    """
    if print_schema:
        typer.echo(json.dumps(Record.model_json_schema(mode="serialization"), indent=2))
        return
    with errors_told():
        checked = check_files(find_files(paths or [_DEFAULT]))
    valid = sum(file.valid for file in checked)
    if as_json:
        counts = {"records": len(checked), "valid": valid, "invalid": len(checked) - valid}
        files = [{"path": str(file.path), "valid": file.valid, **_findings(file)} for file in checked]
        typer.echo(json.dumps({"schema_version": SCHEMA_VERSION, **counts, "files": files}, indent=2))
    else:
        for file in checked:
            _tell(f"{file.path}: ", file.problems)
            _tell(f"{file.path}: warning: ", file.warnings)
        invalid = f", {len(checked) - valid} invalid" if valid < len(checked) else ""
        typer.echo(f"{len(checked)} record{'s' if len(checked) > 1 else ''}: {valid} valid{invalid}")
    if valid < len(checked):
        raise typer.Exit(FAILED)


def _tell(head: str, findings: Sequence[Finding]) -> None:
    for finding in findings[:_MOST_SHOWN]:
        typer.echo(printable(f"{head}{finding}"))
    if len(findings) > _MOST_SHOWN:
        typer.echo(f"{head}and {len(findings) - _MOST_SHOWN} more")


def _findings(file: Checked) -> dict[str, list[dict[str, str]]]:
    return {name: [vars(finding) for finding in getattr(file, name)] for name in ("problems", "warnings")}
