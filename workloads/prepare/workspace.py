"""The work folder of a preparation, whose finished steps the next run uses again, and its bound on memory."""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import ByteSize, TypeAdapter, ValidationError

from workloads import DataError
from workloads.manifest import Settings
from workloads.prepare.formats import RawFormat

# Interpreter, libraries and what the allocators keep: measured at 150 MiB, rounded up.
BASE_BYTES = 256 << 20
SMALLEST_BYTES = 512 << 20
LARGEST_BLOCK_BYTES = 64 << 20
# A block of text while it is parsed: its frame of strings, the numbers, and the next block being read.
BYTES_PER_TEXT_BYTE = 24
# One distinct id while sorted lists of ids are merged: value, count and first row, in and out of a hash table.
# Ranking and looking up take less.
BYTES_PER_ID = 600


@dataclass(frozen=True)
class MemoryBudget:
    """Peak resident memory of a preparation, in bytes, whatever the size of its input."""

    bytes: int = 8 * 10**9

    def __post_init__(self) -> None:
        if self.bytes < SMALLEST_BYTES:
            raise DataError(f"--memory must be at least {SMALLEST_BYTES >> 20}MiB: the program alone takes half of it")

    @classmethod
    def parse(cls, text: str) -> Self:
        """A size such as `8GB`, `512MiB` or a number of bytes."""
        problem = f"--memory {text!r} is not a size: write it like 8GB or 512MiB"
        if not re.fullmatch(r"\d*\.?\d+\s*[A-Za-z]*", text.strip()):  # pydantic takes 1,5GB for 1
            raise DataError(problem)
        try:
            return cls(TypeAdapter(ByteSize).validate_python(text.strip()))
        except ValidationError as error:
            raise DataError(problem) from error

    @property
    def text_block_bytes(self) -> int:
        """Text parsed at a time."""
        return min((self.bytes - BASE_BYTES) // BYTES_PER_TEXT_BYTE, LARGEST_BLOCK_BYTES)

    def blocks(self, most: int) -> int:
        """Blocks of rows that may be in memory at once as arrays, which take up to four times their text."""
        return max(1, min(most, (self.bytes - BASE_BYTES) // (4 * self.text_block_bytes)))

    def ids(self, tasks: int) -> int:
        """Ids merged, ranked or looked up at a time, in each of several tasks that run at once."""
        return (self.bytes - BASE_BYTES) // tasks // BYTES_PER_ID


def threads() -> int:
    """Threads that share the work on one file: the cores that this process may use."""
    return len(os.sched_getaffinity(0))


LAYOUT = 7  # of finished steps: a change makes those of earlier versions worthless
DONE = "done.json"
UNFINISHED = ".unfinished"
_REPLACED = "replaced"

Advance = Callable[[int], None]
"""Called by a task, again and again, with the bytes or rows that it has done."""


@dataclass(frozen=True)
class Job:
    """A preparation as each of its steps sees it; `work` is the work folder."""

    raw: RawFormat
    settings: Settings
    memory: MemoryBudget
    work: Path


class Finished(NamedTuple):
    """The folder that a step has filled, and what it noted."""

    folder: Path
    note: dict[str, Any]


def key_of(*facts: object) -> str:
    """A short name for what a step depends on: equal facts, equal key."""
    return hashlib.sha256(json.dumps([LAYOUT, *facts], sort_keys=True, default=str).encode()).hexdigest()[:20]


def step(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> Finished:
    """Have a folder filled, unless an earlier run has; it is put in place, with the note returned, without an error.

    The name says what the step depends on (`key_of`), so that a finished folder is right by being there.
    """
    if not (folder / DONE).exists():
        # a cluster may still run the task of an interrupted run
        unfinished = folder.with_name(f"{folder.name}-{os.urandom(4).hex()}{UNFINISHED}")
        unfinished.mkdir(parents=True)
        try:
            (unfinished / DONE).write_text(json.dumps(fill(unfinished)))
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        try:
            put_in_place(unfinished, folder)
        except OSError:
            if not (folder / DONE).exists():
                raise
            shutil.rmtree(unfinished, ignore_errors=True)  # another task was there first
    return Finished(folder, json.loads((folder / DONE).read_bytes()))


def put_in_place(made: Path, place: Path) -> None:
    """Rename a folder once all in it is on the drive, and what was done beside it; return once the new name is too."""
    for folder, _, files in os.walk(made, topdown=False):
        for file in files:
            sync(Path(folder, file))
        sync(Path(folder))
    sync(made.parent)
    made.rename(place)
    sync(place.parent)
    sync(made.parent)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the drive."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def publish(made: Path, target: Path, *, work: Path) -> None:
    """Put the finished output in place; what it replaces goes with the work folder, or back on an error."""
    aside = work / _REPLACED
    try:
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed when all was in place
            put_in_place(target, aside)
        put_in_place(made, target)
    except BaseException:
        _put_back(target, work)
        raise


def _put_back(target: Path, work: Path) -> None:
    """Put the earlier output back if a run ended when it had put it aside and the new one was not in place."""
    if (work / _REPLACED).exists() and not target.exists():
        put_in_place(work / _REPLACED, target)


@contextmanager
def work_folder(folder: Path, *, restart: bool, target: Path) -> Iterator[Path]:
    """Lock the folder of finished steps; delete it when all is done, or when an error leaves no finished step in it.

    Before all else, an earlier output that a killed run put aside is put back to `target`. With `restart` the folder is
    emptied then.

    Raises:
        DataError: another process works in it.
    """
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"another preparation works in {folder}: wait for it, or choose another --out") from error
        _put_back(target, folder)
        shutil.rmtree(removed(folder), ignore_errors=True)
        for entry in folder.iterdir() if restart else folder.glob(f"*{UNFINISHED}"):
            _remove(entry)
        try:
            yield folder
        except BaseException:
            if not any(folder.glob(f"*/{DONE}")):
                with suppress(OSError):  # the first error is the one to tell
                    _remove(folder)
            raise
        _remove(folder)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    """All at once by name: a step that is half removed must not look finished to the next run."""
    gone = removed(path)
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def removed(path: Path) -> Path:
    """The name under which a folder is removed."""
    return path.with_name(f"{path.name}.gone")


def identity(path: Path) -> Mapping[str, object]:
    """Path, size and time of an input, which differ once it has changed; a pipe never equals anything, even itself."""
    found = path.stat()
    nonce = "" if path.is_file() else os.urandom(8).hex()
    return {"path": str(path.resolve()), "bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "nonce": nonce}
