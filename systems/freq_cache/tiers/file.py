"""A slow tier on disk: a log of records that survives a crash, for tables larger than RAM."""

import errno
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from systems.contract import MemoryUse, Tier
from systems.freq_cache.tiers.blocks import STAGING_BYTES
from systems.freq_cache.tiers.commits import (
    REMEDY,
    Codes,
    Damaged,
    SavedMap,
    Sums,
    empty_map,
    load_map,
    save_map,
    sync_directory,
)
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.row_file import RowFile, put_codes
from systems.freq_cache.tiers.slow_tier import SlowTier

Initialize = Callable[[Tensor], Tensor]
"""Gives the first weights of rows, int64 `[n]`, as fp32 `[n, dim]`."""

_MOST_ROWS = 5 * 10**8
"""Between two commits each row may have an old and a new position: twice as many and some more can be numbered."""
_CHUNK = 1 << 20

SPARE = 1 / 3
"""Share of the log that must be free before free positions are reused."""
MOST_POSITIONS = (1 << 30) - 1
"""Maximum positions: of a code's 31 bits one says that the row is in RAM, and one code is for none."""

Ints = npt.NDArray[np.int64]


class FileTier(SlowTier):
    """Rows in a directory: `rows.bin`, a log of records, and `map.<n>`, which says where the rows lay at commit `n`.

    A row takes no disk space before it is written: until then its weights are computed and its state is zero. A write
    goes to a position that the committed map does not name, mostly the end of the log, and only when it has succeeded
    does the row move there. So after a crash of the process the directory opens as it was at the last commit, and a
    write that fails changes nothing. After a crash of the machine too, if the drive writes each block wholly or not at
    all: the records of a block may be of the last commit and of later. Where it does not, and wherever else a record
    was changed, its checksum tells, and the row is refused. Log and map of the largest commit take at most
    `1 / (1 - SPARE)` times the space of the written rows, and between two commits once more that of the rows rewritten.

    Args:
        directory: Made if it does not exist; nobody else may have it.
        rows: 500 million at most.
        layout: Layout of a record.
        saved: The map of the last commit, with as many rows of the same layout; None: there was none.
        counts: Whether the commit of a number counts, whose map was saved.
        initialize: First weights of rows, called from any thread; default: zero.
        name_of: A row in words, for messages.

    Attributes:
        direct: The file is read and written past the page cache.
        rows_read, rows_written: Number of records read from the file, initial weights among them, and written to it.

    Raises:
        Damaged: its files are not what was written.
        OSError: it cannot be read or written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rows: int,
        layout: RowLayout,
        saved: SavedMap | None = None,
        counts: Callable[[int], bool] = lambda _: False,
        initialize: Initialize | None = None,
        name_of: Callable[[int], str] = "row {}".format,
    ) -> None:
        super().__init__(rows=rows, layout=layout)
        if rows > _MOST_ROWS:
            raise ValueError(f"a file tier holds {_MOST_ROWS:,} rows at most, not {rows:,}: split the tables")
        self._initialize = initialize
        self._directory = directory
        self._counts = counts
        self._saved: int | None = None
        """Number of the commit that a map was last saved for, until it is known whether that counts."""
        self._writing = threading.Lock()
        self._lost = False
        self.rows_read = self.rows_written = 0
        if not directory.exists():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        self._codes, self._sums, self._positions = self._restored(saved)
        with ExitStack() as opened:
            self._file = RowFile(directory / "rows.bin", record_bytes=layout.record_bytes, name_of=name_of)
            self.direct = self._file.direct
            opened.callback(self._file.close)
            if self._file.positions < self._positions.end:
                raise Damaged(
                    f"{self._file.path} has {self._file.positions:,} records, fewer than the {self._positions.end:,} "
                    f"that were committed: {REMEDY}"
                )
            # what is behind was written after the last commit
            self._file.cut(self._positions.end)
            self._remove_maps_except(saved.number if saved else None)
            self._opened = opened.pop_all()

    def read(self, rows: Tensor, out: Tensor) -> None:
        codes = self._codes_of(rows)
        self.rows_read += codes.size
        written = np.flatnonzero(codes)
        if written.size < codes.size:
            self._fill_first(rows, out, torch.from_numpy(np.flatnonzero(codes == 0)))
        records: npt.NDArray[np.uint8] = out.view(torch.uint8).numpy()
        wanted = rows.numpy()[written]
        self._file.read(np.abs(codes[written]) - 1, records, places=written, rows=wanted, sums=self._sums[wanted])

    def write(self, rows: Tensor, records: Tensor) -> None:
        with self._writing:
            self._settle()
            self._log(rows, records)

    def _log(self, rows: Tensor, records: Tensor) -> None:
        """Write records to the file, as `write`, which holds the lock."""
        data: npt.NDArray[np.uint8] = records.view(torch.uint8).numpy()
        before = self._codes_of(rows)
        offered = self._positions.offer(len(data))
        end, appended = self._positions.end, len(data) - offered.size
        if end + appended > MOST_POSITIONS:
            raise OSError(errno.EFBIG, "has no room for more rows: commit", str(self._file.path))
        at_end = self._file.append(end, data[offered.size :])
        sums = np.concatenate([self._file.write(offered, data[: offered.size]), at_end])
        # in this order an interrupt wastes positions at worst
        self._positions.take(offered=offered.size, appended=appended)
        after = np.concatenate([offered, np.arange(end, end + appended)]) + 1
        # negative: written since the last commit
        self._put(rows.numpy(), -after, sums)
        self._positions.release(-before[before < 0] - 1)
        self._positions.retire(before[before > 0] - 1)
        self.rows_written += len(data)

    def _put(self, rows: Ints, codes: Ints, sums: Sums) -> None:
        """Note where rows were written in the file, and their checksums."""
        put_codes(self._codes, self._sums, rows, codes, sums)

    def save_map(self, number: int) -> SavedMap:
        """Bring what has been written so far to the drive, and a map of it, for a commit of this number.

        Until that counts the last commit does. Nothing may be written to the tier before it was decided.

        Raises:
            OSError: it could not be done. It may be tried again, unless the drive lost rows on their way: then the tier
                must be opened anew, at the last commit.
        """
        with self._writing:
            self._settle()
            if self._lost:
                raise OSError(
                    errno.EIO, "lost rows written since the last commit: open the tier anew", str(self._file.path)
                )
            self._write_dirty()
            try:
                self._file.sync()
            except OSError:
                # the kernel reports a lost page once, and then takes the file for sound
                self._lost = True
                raise
            # counted here: counted along with writes, it would differ after one that was interrupted
            touched = int(np.count_nonzero(self._codes))
            crc = save_map(self._map_of(number), self._file_codes, self._sums, touched=touched)
            sync_directory(self._directory)
            self._saved = number
            return SavedMap(number=number, positions=self._positions.end, touched=touched, crc32=crc)

    def _settle(self) -> None:
        """Before a write: if the commit counts that a map was saved for, no position of that may be used."""
        if self._saved is None:
            return
        if self._counts(self._saved):
            self._count_as_committed()
            self._positions.commit()
            self._remove_maps_except(self._saved)
        self._saved = None

    def _write_dirty(self) -> None:
        """Write to the file what is newer elsewhere, before a commit."""

    def _count_as_committed(self) -> None:
        """Make the sign of all codes that of the last commit."""
        for start in range(0, self.rows, _CHUNK):
            chunk = self._codes[start : start + _CHUNK]
            new = np.flatnonzero(chunk < 0)
            chunk[new] = -chunk[new]

    def _file_codes(self, start: int, stop: int) -> Codes:
        """The codes of the records of rows in the file."""
        return self._codes[start:stop]

    def _map_of(self, number: int) -> Path:
        return self._directory / f"map.{number}"

    def _remove_maps_except(self, number: int | None) -> None:
        for path in self._directory.glob("map.*"):
            if path.name != f"map.{number}":
                path.unlink()

    def memory(self) -> Mapping[tuple[Tier, MemoryUse], int]:
        weights = self.layout.weight_bytes
        return {
            (Tier.DISK, MemoryUse.ROWS): self._positions.end * weights,
            (Tier.DISK, MemoryUse.STATE): self._positions.end * (self.layout.record_bytes - weights),
            (Tier.HOST, MemoryUse.INDEX): sum(
                held.nbytes for held in (self._codes, self._sums, self._positions, self._file)
            ),
            (Tier.HOST, MemoryUse.STAGING): 2 * STAGING_BYTES,
        }

    def close(self) -> None:
        """Release the directory; what was written since the last commit is lost."""
        self._opened.close()

    def _restored(self, saved: SavedMap | None) -> tuple[Codes, Sums, Positions]:
        if saved is None:
            return *empty_map(self.rows), Positions()
        codes, sums = load_map(self._map_of(saved.number), saved, rows=self.rows)
        used = np.zeros(saved.positions, dtype=np.bool_)
        for start in range(0, self.rows, _CHUNK):
            chunk = codes[start : start + _CHUNK]
            used[chunk[chunk > 0] - 1] = True
        return codes, sums, Positions(end=saved.positions, free=np.flatnonzero(~used))

    def _codes_of(self, rows: Tensor) -> Ints:
        # torch gathers from large arrays several times as fast as numpy
        found = torch.from_numpy(self._codes).index_select(0, rows).to(torch.int64)
        codes: Ints = found.numpy()
        return codes

    def _fill_first(self, rows: Tensor, out: Tensor, absent: Tensor) -> None:
        first = torch.zeros(absent.shape[0], self.layout.width, dtype=self.layout.element)
        if self._initialize is not None:
            self.layout.set_weights(first, self._initialize(rows[absent]))
        out.index_copy_(0, absent, first)


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
