"""The work folder of a preparation: steps that one run has finished are used again by the next one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workloads.errors import DataError
from workloads.manifest import Settings
from workloads.prepare.columns import RawFormat
from workloads.prepare.memory_bound import Memory

DONE = "done.json"
UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Job:
    """What every step of a preparation needs to know.

    Attributes:
        raw: How the rows are written.
        settings: What the user chose.
        memory: The bound on memory.
        work: The work folder.
    """

    raw: RawFormat
    settings: Settings
    memory: Memory
    work: Path


class PlacedFile(NamedTuple):
    """What a step made of one raw file, and the row of the dataset at which that file begins."""

    folder: Path
    start: int


def key_of(*facts: object) -> str:
    """A short name for what a step depends on: equal facts, equal key."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def done(folder: Path) -> dict[str, Any] | None:
    """What a finished step noted, or None where the step has not been finished."""
    try:
        note: dict[str, Any] = json.loads((folder / DONE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return note


@contextmanager
def step(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give a folder to fill and a note to write; both are put in place once the block has ended without an error.

    The name says what the step depends on (`key_of`), so that a finished folder is right by being there.
    """
    unfinished = folder.with_name(folder.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    note: dict[str, Any] = {}
    try:
        yield unfinished, note
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    (unfinished / DONE).write_text(json.dumps(note))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


@contextmanager
def work_folder(folder: Path, *, restart: bool) -> Iterator[Path]:
    """Lock the folder of finished steps; delete it when all is done, or when an error leaves no finished step in it.

    Args:
        folder: Where it is, or will be.
        restart: Begin with an empty one.

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
        if restart:
            _empty(folder)
        try:
            yield folder
        except BaseException:
            if not any(done(entry) for entry in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def identity(path: Path) -> Mapping[str, object]:
    """Path, size and time of an input, which differ once it has changed; a pipe never equals anything, even itself."""
    found = path.stat()
    nonce = "" if path.is_file() else os.urandom(8).hex()
    return {"path": str(path.resolve()), "bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "nonce": nonce}


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
