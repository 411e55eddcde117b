"""Where the rows of a file tier are: the file that says so for a commit, and the positions that are free.

A map is the int32 codes of all rows followed by the uint16 checksums of their records or, where that is shorter, row,
code and checksum of each row that has been written. A row's code is 0 if it was never written, else its position + 1.
Numbers are little-endian. The manifest of the commit has the checksum of the map.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from systems.freq_cache.tiers.manifest import Damaged, checksum_of, write_synced

Codes = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint16]

SUM_BYTES = 2
"""Bytes of the checksum of a row's record, in memory and in the map."""
REMEDY = "restore the directory from a copy, or give an empty one to start anew"

_ENTRY = np.dtype([("row", "<i4"), ("code", "<i4"), ("sum", "<u2")])
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SavedMap:
    """What a manifest says of a map.

    Attributes:
        number: Number of its commit.
        positions: Records of the row file up to the last that is in use.
        touched: Rows that have been written.
        crc32: Checksum of the map.
    """

    number: int
    positions: int
    touched: int
    crc32: int


def save_map(path: Path, codes: Callable[[int, int], Codes], sums: Sums, *, touched: int) -> int:
    """Write a map to the drive, and return its checksum.

    The name is on the drive only after `sync_directory`. `codes`: gives the codes of the rows from one on to before
    another, int32, whose signs are ignored. `sums`: uint16 `[rows]`, checksums of the records of written rows.

    Raises:
        OSError: it could not be written.
    """
    return write_synced(path, _parts(codes, sums, in_entries=_in_entries(sums.size, touched)))


def load_map(path: Path, saved: SavedMap, *, rows: int) -> tuple[Codes, Sums]:
    """Read a map back: the codes, int32 `[rows]`, none negative, and the checksums, uint16 `[rows]`.

    Raises:
        Damaged: the file is not what was written.
        OSError: it cannot be read.
    """
    if not path.is_file() or checksum_of(path) != saved.crc32:
        raise Damaged(f"{path} is missing or damaged, its checksum does not match: {REMEDY}")
    with path.open("rb") as file:
        if not _in_entries(rows, saved.touched):
            return np.fromfile(file, "<i4", rows), np.fromfile(file, "<u2", rows)
        codes, sums = empty_map(rows)
        for start in range(0, saved.touched, _CHUNK):
            entries = np.fromfile(file, _ENTRY, min(_CHUNK, saved.touched - start))
            codes[entries["row"]], sums[entries["row"]] = entries["code"], entries["sum"]
    return codes, sums


def empty_map(rows: int) -> tuple[Codes, Sums]:
    """Codes and checksums of rows that were never written. Pages of zeros take no memory before they are written."""
    return np.zeros(rows, dtype=np.int32), np.zeros(rows, dtype=np.uint16)


def _in_entries(rows: int, touched: int) -> bool:
    """Whether only the written rows are in a map."""
    return touched * _ENTRY.itemsize < rows * (_ENTRY["code"].itemsize + SUM_BYTES)


def _parts(codes: Callable[[int, int], Codes], sums: Sums, *, in_entries: bool) -> Iterator[bytes]:
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
