"""Command line: `python -m suite validate`, which checks record files."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from suite.records.command_line import FAILED, BadOption, errors_told, printable
from suite.records.record import SCHEMA_VERSION, Record
from suite.records.store import Finding, NotARecord, RecordStore, read_content, to_record

_RECORDS = "records"
"""Folder of records in a results directory."""
_PATH = re.compile(r"""(?:^|(?<=[\s"'(=<]))/[A-Za-z_][^\s"'()<>,;:]*""")
"""An absolute path in a text; the `/` of `device/rows` and of an address do not begin one."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A record file after its check; `record` is None where it is none."""

    path: Path
    record: Record | None = None
    problems: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong with it; warnings do not count."""
        return not self.problems


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The record files at some paths, each once: files themselves, and `records/*.json` in and below directories.

    Hidden folders and links to folders below a path are not entered.

    Raises:
        BadOption: at one of the paths there is none, or it cannot be read.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        if not os.path.lexists(path):
            raise BadOption(f"no such file or directory: {path}; name record files or results directories")
        here = _below(path) if path.is_dir() else [path]
        if not here:
            raise BadOption(
                f"no JSON file in a folder named {_RECORDS} in {path}: name the results directory of a run, or record "
                "files themselves"
            )
        for file in here:
            files.setdefault(file.absolute(), file)
    return list(files.values())


def _below(folder: Path) -> list[Path]:
    found = []
    for where, folders, names in os.walk(folder, onerror=_cannot_be_read):
        if Path(where).absolute().name == _RECORDS:
            found += [Path(where, name) for name in sorted(names + folders) if name.endswith(".json")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    return found


def _cannot_be_read(error: OSError) -> None:
    raise BadOption(f"cannot read {error.filename}: {error.strerror}; make it readable, or name other paths")


def check_files(paths: Iterable[Path]) -> list[Checked]:
    """Check record files: each loads by the rules of the models, has its own name, and a key of its own."""
    first: dict[tuple[Path, str], Path] = {}
    checked = []
    for path in paths:
        try:
            record = to_record(read_content(path))
        except NotARecord as error:
            checked.append(Checked(path=path, problems=error.findings))
            continue
        problems = []
        name = RecordStore(path.parent.parent).path(record).name
        if name != path.name:
            problems.append(Finding("", f"is not named as the store names it; rename it to {name}"))
        earlier = first.setdefault((path.absolute().parent, record.key), path)
        if earlier != path:
            problems.append(Finding("key", f"repeats the key of {earlier.name}; delete one of them"))
        named = tuple(paths_of_machine(record.model_dump(mode="json")))
        checked.append(Checked(path=path, record=record, problems=tuple(problems), warnings=named))
    return checked


def paths_of_machine(value: object, where: str = "") -> Iterator[Finding]:
    """Absolute paths in a record's content, which had better not be published."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths_of_machine(inner, f"{where}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths_of_machine(inner, f"{where}[{index}]")
    elif isinstance(value, str) and (named := _PATH.search(value)):
        yield Finding(where, f"names a path of its machine, {named[0][:60]!r}")


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
