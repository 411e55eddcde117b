"""Which files are record files, and what is found in each."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suite.records.options import BadOption
from suite.records.record import Record
from suite.records.store import NotARecord, read_content, to_record
from suite.validate.consistency import disagreements, warnings
from suite.validate.schema import Finding, misfits

_RECORDS = "records"
"""Folder of records in a results directory."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A record file after its check; `record` is None where it could not be read."""

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
    """Check record files, each alone and then for keys that repeat within a directory."""
    first: dict[tuple[Path, str], Path] = {}
    checked = []
    for path in paths:
        done = check_file(path)
        if done.record is not None:
            earlier = first.setdefault((path.absolute().parent, done.record.key), path)
            if earlier != path:
                repeats = Finding("key", f"repeats the key of {earlier.name}; delete one of them")
                done = replace(done, problems=(*done.problems, repeats))
        checked.append(done)
    return checked


def check_file(path: Path) -> Checked:
    """Check one record file; whatever is wrong with it stands under `problems`.

    JSON first, then the published schema, then the models, and last what no schema can say. A step that fails is the
    last.
    """
    try:
        content = read_content(path)
        if problems := misfits(content):
            return Checked(path=path, problems=tuple(problems))
        record = to_record(content)
        return Checked(
            path=path,
            record=record,
            problems=tuple(disagreements(record, path)),
            warnings=tuple(warnings(content)),
        )
    except NotARecord as error:
        return Checked(path=path, problems=(Finding("", str(error)),))
    except RecursionError:
        return Checked(path=path, problems=(Finding("", "is no record: it is nested too deeply"),))
