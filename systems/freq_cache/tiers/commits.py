"""Commits of a directory of rows, atomic over its tiers: a manifest in JSON with a checksum, and maps that it names.

Maps are written first. Then the manifest takes the place of the last one, in one step.

A map says where the rows of a file tier are: it is row, code and checksum of the record of each row that has been
written. A row's code is 0 if it was never written, else its position + 1. Numbers are little-endian. `Positions` says
which positions no map has.
"""

import errno
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Sums = npt.NDArray[np.uint16]

SPARE = 1 / 3
"""Share of the log that must be free before free positions are reused."""
MOST_POSITIONS = (1 << 30) - 1
"""Maximum positions: of a code's 31 bits one says that the row is in RAM, and one code is for none."""
REMEDY = "restore the directory from a copy, or give an empty one to start anew"

_NAME, _VERSION = "commits", 5
_CHECKSUM = "crc32"
_ENTRY = np.dtype([("row", "<i4"), ("code", "<i4"), ("sum", "<u2")])
_CHUNK = 1 << 20
_NONE: Ints = np.empty(0, dtype=np.int64)


class Damaged(ValueError):
    """Files differ from those that were written; the message names one."""


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    """Overwrite a file and, once it is on the drive, return its CRC-32. Its name is there after `sync_directory`."""
    crc = 0
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
            crc = zlib.crc32(part, crc)
        file.flush()
        os.fsync(file.fileno())
    return crc


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the drive."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing; return when their names are on the drive."""
    if not path.exists():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def checksum_of(path: Path) -> int:
    """The CRC-32 of a file's content."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            crc = zlib.crc32(chunk, crc)
    return crc


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest to the drive beside `path`, and rename it to that; its name is there after `sync_directory`.

    After an error, also of content that is no JSON, the one at `path` is as before.
    """
    text = json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1, allow_nan=False)
    beside = path.with_name(f"{path.name}.part")
    try:
        write_synced(beside, [text.encode()])
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_manifest(path: Path, *, version: int, remedy: str) -> dict[str, Any]:
    """Read a manifest back, which has its version under `version`.

    Raises:
        Damaged: it is not what was written; the message ends with the remedy.
        ValueError: it has another version.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        found, checksum = content["version"], content.pop(_CHECKSUM, None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # not what is written there
        raise Damaged(f"{path} is damaged ({error}): {remedy}") from error
    if found != version:
        raise ValueError(f"{path} is of version {found}, this code reads {version}: use the code that wrote it")
    if checksum != _checksum(content):
        raise Damaged(f"{path} is damaged, its checksum does not match: {remedy}")
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


@dataclass(frozen=True, kw_only=True)
class SavedMap:
    """A map as a manifest has it: its commit, records of the row file up to the last in use, its checksum."""

    number: int
    positions: int
    crc32: int


def save_map(path: Path, codes: Codes, in_file: Callable[[Codes], Codes], sums: Sums) -> int:
    """Write a map as `write_synced`.

    `codes`: int32 `[rows]`, of which `in_file` gives those in the file; their signs are ignored. `sums`: uint16
    `[rows]`, checksums of the records of written rows.
    """

    def entries() -> Iterator[bytes]:
        for start in range(0, sums.size, _CHUNK):
            chunk = np.abs(in_file(codes[start : start + _CHUNK]))
            written = np.flatnonzero(chunk)
            found = np.empty(written.size, _ENTRY)
            found["row"], found["code"], found["sum"] = start + written, chunk[written], sums[start + written]
            yield found.tobytes()

    return write_synced(path, entries())


def load_map(path: Path, saved: SavedMap, *, rows: int) -> tuple[Codes, Sums]:
    """Read a map back: the codes, int32 `[rows]`, none negative, and the checksums, uint16 `[rows]`.

    Raises:
        Damaged: the file is not what was written.
    """
    if not path.is_file() or checksum_of(path) != saved.crc32:
        raise Damaged(f"{path} is missing or damaged, its checksum does not match: {REMEDY}")
    codes, sums = empty_map(rows)
    with path.open("rb") as file:
        while (found := np.fromfile(file, _ENTRY, _CHUNK)).size:
            codes[found["row"]], sums[found["row"]] = found["code"], found["sum"]
    return codes, sums


def empty_map(rows: int) -> tuple[Codes, Sums]:
    """Codes and checksums of rows that were never written. Pages of zeros take no memory before they are written."""
    return np.zeros(rows, dtype=np.int32), np.zeros(rows, dtype=np.uint16)


class Positions:
    """The log's end and the free positions before it.

    Writing at the end costs one long write. Writing to free positions costs a read and a write of every page that has
    some, so the log first grows until the share `SPARE` of it is free; free positions are then filled in order from
    the start (Rosenblum and Ousterhout 1992 call it threading the log). At `MOST_POSITIONS` all free positions are used
    at once.
    """

    def __init__(self, *, end: int = 0, free: Ints | None = None) -> None:
        self.end = end
        self._ready = _NONE if free is None else free
        self._freed: list[Ints] = []
        self._retired: list[Ints] = []

    def offer(self, count: int) -> Ints:
        """Free positions for the first of `count` records, int64, ascending, `count` at most; the others go to the end.

        The caller confirms their use with `take`.
        """
        full = self.end + count > MOST_POSITIONS
        if not full and self._ready.size + sum(part.size for part in self._freed) < SPARE * self.end:
            return _NONE
        if full or self._ready.size < count:  # else the rest would go to the end, and the log grow with every round
            self._ready = np.sort(np.concatenate([self._ready, *self._freed]))
            self._freed = []
        return self._ready[:count]

    def take(self, *, offered: int, appended: int) -> None:
        """Mark the first `offered` of the offered positions, and `appended` positions at the end, as used."""
        self._ready = self._ready[offered:]
        self.end += appended

    def replaced(self, codes: Ints) -> None:
        """Free the positions of codes: of negative ones at once, which no committed map has, of others at a commit."""
        for parts, positions in ((self._freed, -codes[codes < 0] - 1), (self._retired, codes[codes > 0] - 1)):
            if positions.size:
                parts.append(positions)

    def commit(self) -> None:
        """Free the retired positions, which no committed map contains any more."""
        self._freed += self._retired
        self._retired = []

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._ready, *self._freed, *self._retired))


class Commits:
    """The commits of a directory with some file tiers, whose own directories begin with `cache_`.

    A commit counts for all tiers at once, from the moment in which its manifest takes the place of the last one. Each
    tier has saved a map for it before, and finds out whether it counts before it is written to again.

    Args:
        directory: Made if it does not exist, and locked until `close`.
        contents: Description of each tier in JSON: its tables, their layout, and what the initial values of their rows
            follow from.

    Attributes:
        directory: The same.
        saved: The map of each tier at the last commit; None: there was none.
        extra: What went with that commit.

    Raises:
        NotADirectoryError: `directory` is something else.
        BlockingIOError: a live process has it open.
        Damaged: what says how often it was committed is missing or damaged.
        ValueError: it was committed with other contents; no file of it has changed.
    """

    def __init__(self, directory: Path, contents: Sequence[JSON]) -> None:
        self.directory = directory
        self._contents = list(contents)
        with ExitStack() as opened:
            lock = _locked(directory)
            opened.callback(os.close, lock)
            opened.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # a forked process may hold it open
            sync_directory(directory)  # what is read now is what a crash of the machine leaves
            last = self._read()
            if last["commit"] and last["contents"] != self._contents:
                raise ValueError(
                    f"{directory} holds rows of other tables, in another order, of another layout or of another seed: "
                    f"{last['contents']}, where these are asked for: {self._contents}; build with what it was written "
                    "with, or give an empty directory"
                )
            maps = [SavedMap(**saved) for saved in last["maps"]]
            self.saved: Sequence[SavedMap | None] = maps or [None] * len(self._contents)
            self.extra: Mapping[str, Any] = last["extra"]
            if not last["commit"]:
                self._write(0, [], {})  # from now on a directory without it has lost it
            self._opened = opened.pop_all()

    def commit(self, saves: Sequence[Callable[[int], SavedMap]], extra: Mapping[str, JSON]) -> None:
        """Make what has been written to all tiers so far what the directory holds when it is opened next.

        Args:
            saves: `FileTier.save_map` of each tier, in the order of their contents.
            extra: Whatever belongs to this state.

        Raises:
            OSError: the commit could not be made; the directory opens as it was at the last one. It may be tried again,
                unless the drive lost rows on their way: then the directory must be opened anew.
        """
        number = self._read()["commit"] + 1
        self._write(number, [asdict(save(number)) for save in saves], extra)

    def counts(self, number: int) -> bool:
        """Whether the last commit that counts has this number, and a crash of the machine cannot change that.

        Raises:
            OSError: it cannot be said.
        """
        sync_directory(self.directory)
        return bool(self._read()["commit"] == number)

    def close(self) -> None:
        """Unlock the directory."""
        self._opened.close()

    def _read(self) -> dict[str, Any]:
        path = self.directory / _NAME
        if path.exists():
            return read_manifest(path, version=_VERSION, remedy="restore the directory from a copy")
        left = sorted(self.directory.glob("cache_*/map.*"))
        if left:
            raise Damaged(f"{path} is missing, and {left[0]} was committed with it: restore it from a copy")
        return {"commit": 0, "maps": [], "extra": {}}

    def _write(self, number: int, maps: Sequence[Mapping[str, int]], extra: Mapping[str, JSON]) -> None:
        content = {"version": _VERSION, "commit": number, "contents": self._contents, "maps": maps, "extra": {**extra}}
        write_manifest(self.directory / _NAME, content)
        sync_directory(self.directory)


def _locked(directory: Path) -> int:
    """Make a directory this process's own for as long as the returned descriptor is open."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "rows are kept in a directory: give another path", str(directory))
    make_directory(directory)
    file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise BlockingIOError(
            errno.EAGAIN, "in use by another live process: wait for it, or give another directory", str(directory)
        ) from None
    return file
