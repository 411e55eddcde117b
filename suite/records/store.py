"""Records as files: one JSON file per run of a cell, written whole or not at all."""

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from suite.records.record import SCHEMA_VERSION, Record, record_key
from suite.records.turns import Turns

_MOST_BYTES = 1 << 24
"""Of a file that is read: a thousand times what a record takes."""
_LARGEST = 2**63 - 1


class StoreError(RuntimeError):
    """A file could not be written; the message names it and says what to do."""


class NotARecord(Exception):
    """Why a file under `records/` is skipped."""


@dataclass(frozen=True)
class Problem:
    """A file under `records/` that was skipped, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class RecordStore:
    """The records under one results directory: files in its folder `records`, which the first write creates."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "records"

    def path(self, record: Record) -> Path:
        """Where a record is kept: readable, and unique by the record's key."""
        cell = record.cell
        parts = (cell.workload, cell.system, cell.optimizer, cell.device, f"r{cell.round}", record.key)
        # letters, digits, dots and underscores; everything else becomes a single dash
        slugs = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.")[:100] for part in parts)
        return self.directory / ("-".join(slugs) + ".json")

    def write(self, record: Record) -> Path:
        """Write a record, in place of an earlier one of the same key.

        Raises:
            StoreError: the disk is full or the directory cannot be written; no torn file is left behind.
        """
        path = self.path(record)
        write_atomically(path, to_text(record))
        return path

    def load_all(self) -> tuple[list[Record], list[Problem]]:
        """Every readable record in order of file name, and the files that were skipped with the reason."""
        records, problems = self.load_files()
        return list(records.values()), problems

    def load_files(self) -> tuple[dict[Path, Record], list[Problem]]:
        """Every readable record by its file, in order of file name, and the files that were skipped with the reason."""
        records: dict[Path, Record] = {}
        first: dict[str, Path] = {}
        problems = []
        try:
            paths = sorted(path for path in self.directory.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return {}, []
        except OSError as error:
            return {}, [Problem(self.directory, f"cannot be read: {error.strerror or error}")]
        for path in paths:
            try:
                record = to_record(read_content(path))
                _check_key(record)
                _check_turns(record.turns)
            except NotARecord as error:
                problems.append(Problem(path, str(error)))
                continue
            if record.key in first:
                # Counting a copy as a further round would feign precision.
                problems.append(Problem(path, f"repeats the key of {first[record.key].name}; delete one of them"))
                continue
            first[record.key] = path
            records[path] = record
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


def read_content(path: Path) -> dict[str, Any]:
    """The JSON object in a file, of the schema version that this suite reads.

    Raises:
        NotARecord: there is none.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "schema_version" not in content:
        raise NotARecord("is JSON but no record: it has no schema_version")
    version = content["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:  # True equals 1
        raise NotARecord(
            f"has schema version {json.dumps(version)[:40]}, this suite reads {SCHEMA_VERSION}: "
            "read it with the suite that wrote it, or measure it again"
        )
    return content


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What a file of somebody's says: a file of moderate size, no link, with integers of 64 bits at most.

    Raises:
        NotARecord: there is none, or it is something else. Nothing is waited for, and no link is followed.
    """
    try:
        with open_file(path) as file:
            read = file.read(_MOST_BYTES + 1)
        if len(read) > _MOST_BYTES:
            raise NotARecord(f"is larger than {_MOST_BYTES >> 20} MiB, which no record is; remove it")
        content = json.loads(read.decode("utf-8"), parse_int=_integer)
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is JSON, but nobody can write it
    except OSError as error:
        raise NotARecord(f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NotARecord(f"is not JSON, or cut short: {error}") from error
    return content


def open_file(path: Path) -> BinaryIO:
    """Open a file of somebody's, who may have put a pipe, a device or a link in its place, or may still do so.

    Raises:
        NotARecord: it is no file of its own.
        OSError: it is not there, or cannot be read.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise NotARecord("cannot be read: it is no file, but a folder, a link, a pipe or the like; remove it")
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotARecord("cannot be read: it is no file any more; remove it")
    return file


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -_LARGEST <= int(digits) <= _LARGEST:
        raise NotARecord(f"holds the integer {digits[:24]}, which does not fit 64 bits: measure it again")
    return int(digits)


def to_record(content: Mapping[str, Any]) -> Record:
    """The record that a file's content is.

    Raises:
        NotARecord: it does not fit the models.
    """
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise NotARecord(f"is no valid record: {where}: {first['msg']}{more}") from error


def _check_key(record: Record) -> None:
    """Refuse a record under a key of another cell, code or machine: by its key it would count as measured."""
    if record.key != record_key(record.cell, record.environment):
        raise NotARecord(
            "has a key that its cell and environment do not give: somebody edited them; restore the file or measure it "
            "again"
        )


def _check_turns(turns: Turns | None) -> None:
    """Refuse turns of which no speed can be made."""
    pairs = ((turns.system_s, turns.baseline_s), (turns.embedding_s, turns.baseline_embedding_s)) if turns else ()
    for pair in pairs:
        given = [times for times in pair if times is not None]
        counts = {tuple(map(len, times)) for times in given}
        timed = all(0 < seconds < math.inf for times in given for build in times for seconds in build)
        if not timed or len(counts) > 1 or any(min(count, default=0) == 0 for count in counts):
            raise NotARecord("has a turn of no duration, or no turns, or others than its baseline; measure it again")


def to_text(record: Record) -> str:
    """The content of a record's file. Losses of diverged runs stand there as strings: JSON has no NaN."""
    return json.dumps(json.loads(record.model_dump_json()), indent=2) + "\n"
