"""Records as files: one JSON file per run of a cell, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from suite.record import SCHEMA_VERSION, Record


class StoreError(RuntimeError):
    """A file could not be written; the message names it and says what to do."""


class _NotARecordError(ValueError):
    """Why a file under `records/` is skipped."""


@dataclass(frozen=True)
class Problem:
    """A file under `records/` that was skipped, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class RecordStore:
    """The records under one results directory.

    Args:
        root: The results directory; records live in `root/records/`, which the first write creates.
    """

    def __init__(self, root: Path) -> None:
        self.directory = root / "records"

    def path(self, record: Record) -> Path:
        """Where a record is kept: readable, and unique by the record's key."""
        cell = record.cell
        parts = (cell.workload, cell.system, cell.optimizer, cell.device, f"r{cell.round}", record.key)
        return self.directory / ("-".join(_slug(part) for part in parts) + ".json")

    def write(self, record: Record) -> Path:
        """Write a record, in place of an earlier one of the same key.

        Raises:
            StoreError: the disk is full or the directory cannot be written; no torn file is left behind.
        """
        path = self.path(record)
        # Not `model_dump_json`: it turns the loss of a diverged run, NaN, into a null that cannot be read back.
        write_atomically(path, json.dumps(record.model_dump(mode="json"), indent=2) + "\n")
        return path

    def find(self, key: str) -> Record | None:
        """The record of this key, or None when there is none that can be read."""
        for path in sorted(self.directory.glob(f"*-{_slug(key)}.json")):
            try:
                record = _read(path)
            except _NotARecordError:
                continue
            if record.key == key:
                return record
        return None

    def load_all(self) -> tuple[list[Record], list[Problem]]:
        """Every readable record in order of file name, and the files that were skipped with the reason."""
        records: dict[str, tuple[Record, Path]] = {}
        problems = []
        for path in sorted(self.directory.glob("*.json")):
            try:
                record = _read(path)
            except _NotARecordError as error:
                problems.append(Problem(path, str(error)))
                continue
            if record.key in records:
                # Counting a copy as a further round would feign precision.
                problems.append(Problem(path, f"repeats the key of {records[record.key][1].name}; delete one of them"))
                continue
            records[record.key] = (record, path)
        return [record for record, _ in records.values()], problems


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see the old content or the new, never a part; creates its directory.

    Raises:
        StoreError: it could not be written. The old content, if any, is still there.
    """
    # In the same directory, because a rename across file systems is not atomic.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            # Otherwise a power cut after the rename may leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}; make room, or choose a results directory "
            "that can be written"
        ) from error
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # The directory itself is missing or unreadable: then there is no file of ours in it either.
        return


def _slug(text: str) -> str:
    """Letters, digits, dots and underscores; everything else becomes a single dash."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:100]


def _read(path: Path) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _NotARecordError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _NotARecordError("is not text") from error
    except ValueError as error:
        raise _NotARecordError(f"is not JSON, or cut short: {error}") from error
    if not isinstance(content, dict) or "schema_version" not in content:
        raise _NotARecordError("is JSON but no record: it has no schema_version")
    version = content["schema_version"]
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        remedy = "update the suite to read it" if newer else "measure it again with this version"
        raise _NotARecordError(f"has schema version {version!r}, this suite reads {SCHEMA_VERSION}; {remedy}")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise _NotARecordError(f"is no valid record: {where}: {first['msg']}{more}") from error
