"""Records as files: one JSON file per run of a cell, written whole or not at all."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from suite.records.measured import EVERY_FIELD
from suite.records.record import SCHEMA_VERSION, Record

_MOST_BYTES = 1 << 24
"""Limit of a file that is read: a thousand times what a record takes."""
_LARGEST = 2**63 - 1


class StoreError(RuntimeError):
    """A file could not be written; the message names it and says what to do."""


class NotARecord(Exception):
    """A file is no record, or whatever else it should hold, and is skipped.

    Attributes:
        path: The file, or a directory that cannot be read.
        findings: What is wrong with it, for each wrong field as in `turns.steps: ...`.
    """

    def __init__(self, path: Path, *findings: str) -> None:
        super().__init__(path, *findings)
        self.path, self.findings = path, findings

    def __str__(self) -> str:
        more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
        return f"{self.path}: {self.findings[0]}{more}"


def file_name(record: Record) -> str:
    """Name of a record's file: readable, and unique by the record's key."""
    cell = record.cell
    parts = (cell.workload, cell.system, cell.optimizer, cell.device, f"r{cell.round}", record.key)
    # letters, digits, dots and underscores; everything else becomes a single dash
    slugs = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.")[:100] for part in parts)
    return "-".join(slugs) + ".json"


class RecordStore:
    """The records under one results directory: files in its folder `records`, which the first write creates."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "records"

    def path(self, record: Record) -> Path:
        """Path of a record."""
        return self.directory / file_name(record)

    def write(self, record: Record) -> Path:
        """Write a record, in place of an earlier one of the same key.

        Raises:
            StoreError: the disk is full or the directory cannot be written; no torn file is left behind.
        """
        path = self.path(record)
        write_atomically(path, to_text(record))
        return path

    def load_all(self) -> tuple[list[Record], list[NotARecord]]:
        """Every readable record in order of file name, and the files that were skipped."""
        records, problems = [], []
        try:
            paths = sorted(path for path in self.directory.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return [], []
        except OSError as error:
            return [], [NotARecord(self.directory, f"cannot be read: {error.strerror or error}")]
        for path in paths:
            try:
                records.append(load_record(path))
            except NotARecord as problem:
                problems.append(problem)
        return records, problems


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part; creates its directory.

    Raises:
        StoreError: it could not be written. The old content, if any, is still there.
    """
    # In the same directory, because a rename across file systems is not atomic.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
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
        with suppress(OSError):  # the directory itself is missing or unreadable: no file of ours is in it either
            temporary.unlink(missing_ok=True)


def write_json(path: Path, content: object, *, indent: int | None = 1) -> None:
    """Write a value as JSON, whole or not at all; raises as `write_atomically` does."""
    write_atomically(path, json.dumps(content, indent=indent) + "\n")


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    """The JSON value in a file of somebody's: a file of moderate size, with integers of 64 bits at most.

    Raises:
        NotARecord: there is none, or it is no file. Nothing is waited for.
    """

    def integer(digits: str) -> int:
        if len(digits) > 20 or not -_LARGEST <= int(digits) <= _LARGEST:
            raise NotARecord(path, f"holds the integer {digits[:24]}, which does not fit 64 bits: measure it again")
        return int(digits)

    try:
        if path.exists() and not path.is_file():
            raise NotARecord(path, "cannot be read: it is no file, but a folder, a pipe or the like; remove it")
        with path.open("rb") as file:
            read = file.read(_MOST_BYTES + 1)
        if len(read) > _MOST_BYTES:
            raise NotARecord(path, f"is larger than {_MOST_BYTES >> 20} MiB, which no record is; remove it")
        return json.loads(read.decode("utf-8"), parse_int=integer)
    except OSError as error:
        raise NotARecord(path, f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NotARecord(path, f"is not JSON, or cut short: {error}") from error


def load_record(path: Path) -> Record:
    """The record in a file.

    Raises:
        NotARecord: it holds none of this schema version, breaks a rule of the models, or has another name.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "schema_version" not in content:
        raise NotARecord(path, "is JSON but no record: it has no schema_version")
    version = content["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:  # True equals 1
        raise NotARecord(
            path,
            f"has schema version {json.dumps(version)[:40]}, this suite reads {SCHEMA_VERSION}: "
            "read it with the suite that wrote it, or measure it again",
        )
    try:
        # from JSON, because there a strict validation takes lists for tuples and words for members of enums
        record = Record.model_validate_json(json.dumps(_numbers(content)), strict=True, context=EVERY_FIELD)
    except ValidationError as error:
        raise NotARecord(path, *map(_finding, error.errors(include_url=False))) from error
    except RecursionError as error:
        raise NotARecord(path, "is no record: it is nested too deeply") from error
    if path.name != (name := file_name(record)):
        raise NotARecord(path, f"is not named as the store names it: rename it to {name}, or delete the copy")
    return record


_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _numbers(content: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """JSON with the numbers that it lacks, instead of the words that stand for them."""
    if isinstance(content, dict):
        return {name: _numbers(inner) for name, inner in content.items()}
    if isinstance(content, list):
        return [_numbers(inner) for inner in content]
    return _WORDS.get(content, content) if isinstance(content, str) else content


def _finding(error: ErrorDetails) -> str:
    """Place and message of an error, with the value unless the message or the place says enough."""
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"]).removeprefix(".")
    said = f"{where}: {error['msg']}" if where else error["msg"]
    if error["type"] in ("rule", "missing", "json_invalid", "extra_forbidden"):
        return said
    found = repr(error["input"])
    return f"{said}, found {found[:60]}{'...' if len(found) > 60 else ''}"


def to_text(record: Record) -> str:
    """The content of a record's file. Losses of diverged runs stand there as strings: JSON has no NaN."""
    return json.dumps(json.loads(record.model_dump_json()), indent=2) + "\n"
