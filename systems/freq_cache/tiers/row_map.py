"""Committed positions of all rows of a file tier: one file, replaced as a whole, checked when it is opened.

The file is a line that names the format, a line of JSON (`Committed`), the map, and a CRC-32 of all before it. The map
is the int32 codes of all rows followed by the uint16 checksums of their records or, where that is shorter, row,
code and checksum of each row that has been written. A row's code is 0 if it was never written, else its position + 1.
Numbers are little-endian.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
Codes = npt.NDArray[np.int32]
Sums = npt.NDArray[np.uint16]

SUM_BYTES = 2
"""Bytes of the checksum of a row's record, in memory and in the map."""
REMEDY = "restore the directory from a copy, or give an empty one to start anew"

_FORMAT = b"freq_cache row map, version "
_VERSION = b"3"
_ENTRY = np.dtype([("row", "<i4"), ("code", "<i4"), ("sum", "<u2")])
_CHUNK = 1 << 20
_CRC_BYTES = 4


class DamagedTier(RuntimeError):
    """The files of a tier differ from those that were written."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The header of a committed map.

    Attributes:
        rows: Rows of the tier.
        dim, dtype, state: Its `RowLayout`, the dtype by name, the state in storage order.
        positions: Records of the row file up to the last that is in use.
        touched: Rows that have been written.
        extra: Values from the caller of `commit`.
    """

    rows: int
    dim: int
    dtype: str
    state: list[tuple[str, int]]
    positions: int
    touched: int
    extra: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def in_entries(self) -> bool:
        """Whether only the written rows are in the map."""
        return self.touched * _ENTRY.itemsize < self.rows * (_ENTRY["code"].itemsize + SUM_BYTES)


def save_map(path: Path, committed: Committed, codes: Callable[[int, int], Codes], sums: Sums) -> None:
    """Write a map to a file beside `path` and, once it is on the drive, rename it to `path`.

    The new name is on the drive only after `sync_directory`. `codes`: gives the codes of the rows from one on to before
    another, int32, whose signs are ignored. `sums`: uint16 `[rows]`, checksums of the records of written rows.

    Raises:
        OSError: the map could not be written; the one at `path` is as before.
        TypeError, ValueError: `committed.extra` is no JSON.
    """
    head = _FORMAT + _VERSION + b"\n" + json.dumps(asdict(committed), allow_nan=False).encode() + b"\n"
    beside = path.with_name("map.part")
    write_synced(beside, _checked(chain([head], _map(codes, sums, in_entries=committed.in_entries))))
    beside.replace(path)


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    """Overwrite a file and, once it is on the drive, return the CRC-32 of its content.

    Its name is on the drive only after `sync_directory`.

    Raises:
        OSError: it could not be written.
    """
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


def checksum_of(path: Path, size: int) -> int:
    """The CRC-32 of the first `size` bytes of a file, or of all that there are."""
    crc = 0
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, 1 << 22))):
            crc = zlib.crc32(chunk, crc)
            size -= len(chunk)
    return crc


def load_map(path: Path) -> tuple[Committed, Codes, Sums]:
    """Read a map back.

    Returns:
        What went with it, the codes, int32 `[rows]`, none negative, and the checksums, uint16 `[rows]`.

    Raises:
        DamagedTier: the file is not what was written.
        ValueError: it has another version.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        form = file.readline(len(_FORMAT) + 20)
        if not form.startswith(_FORMAT):
            raise DamagedTier(f"{path} is no row map: {REMEDY}")
        if form != _FORMAT + _VERSION + b"\n":
            found = form[len(_FORMAT) :].decode(errors="replace").strip()
            raise ValueError(
                f"{path} has version {found}, this program reads version {_VERSION.decode()}: "
                "open it with the program that wrote it, or give an empty directory"
            )
        checked = path.stat().st_size - _CRC_BYTES
        crc = checksum_of(path, checked).to_bytes(_CRC_BYTES, "little")
        file.seek(max(checked, 0))
        if file.read() != crc:
            raise DamagedTier(f"{path} is damaged, its checksum does not match: {REMEDY}")
        file.seek(len(form))
        said = json.loads(file.readline())
        committed = Committed(**{**said, "state": [(name, width) for name, width in said["state"]]})
        if not committed.in_entries:
            return committed, np.fromfile(file, "<i4", committed.rows), np.fromfile(file, "<u2", committed.rows)
        codes, sums = empty_map(committed.rows)
        for start in range(0, committed.touched, _CHUNK):
            entries = np.fromfile(file, _ENTRY, min(_CHUNK, committed.touched - start))
            codes[entries["row"]], sums[entries["row"]] = entries["code"], entries["sum"]
    return committed, codes, sums


def empty_map(rows: int) -> tuple[Codes, Sums]:
    """Codes and checksums of rows that were never written. Pages of zeros take no memory before they are written."""
    return np.zeros(rows, dtype=np.int32), np.zeros(rows, dtype=np.uint16)


def _checked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks, and behind them their checksum."""
    crc = 0
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
        yield chunk
    yield crc.to_bytes(_CRC_BYTES, "little")


def _map(codes: Callable[[int, int], Codes], sums: Sums, *, in_entries: bool) -> Iterator[bytes]:
    for start in range(0, sums.size, _CHUNK):
        chunk = np.abs(codes(start, min(start + _CHUNK, sums.size)))
        if not in_entries:
            yield chunk.astype("<i4").tobytes()
            continue
        written = np.flatnonzero(chunk)
        entries = np.empty(written.size, _ENTRY)
        entries["row"], entries["code"], entries["sum"] = start + written, chunk[written], sums[start + written]
        yield entries.tobytes()
    if not in_entries:
        for start in range(0, sums.size, _CHUNK):
            yield sums[start : start + _CHUNK].astype("<u2").tobytes()


Ints = npt.NDArray[np.int64]

SPARE = 1 / 3
"""Share of the log that must be free before free positions are reused."""
MOST_POSITIONS = (1 << 30) - 1
"""Maximum positions: of a code's 31 bits one says that the row is in RAM, and one code is for none."""


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

    def release(self, positions: Ints) -> None:
        """Free positions at once: no committed map contains them."""
        if positions.size:
            self._freed.append(positions)

    def retire(self, positions: Ints) -> None:
        """Free positions after the next commit: the committed map contains them."""
        if positions.size:
            self._retired.append(positions)

    def commit(self) -> None:
        """Free the retired positions, which no committed map contains any more."""
        self._freed += self._retired
        self._retired = []

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._ready, *self._freed, *self._retired))


_NONE: Ints = np.empty(0, dtype=np.int64)
