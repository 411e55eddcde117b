"""A slow tier on disk, for tables larger than RAM: a log of records that survives a crash, and a level of RAM above."""

import errno
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from systems.contract import MemoryUse, Tier
from systems.freq_cache.tiers.commits import (
    MOST_POSITIONS,
    REMEDY,
    Codes,
    Commits,
    Damaged,
    Positions,
    SavedMap,
    Sums,
    empty_map,
    load_map,
    make_directory,
    save_map,
    sync_directory,
)
from systems.freq_cache.tiers.ram_index import IN_RAM, Int32s, Ints, Keys, RamIndex
from systems.freq_cache.tiers.row_file import STAGING_BYTES, RowFile
from systems.freq_cache.tiers.slow_tier import RowLayout, SlowTier

_MOST_ROWS = 5 * 10**8
"""Between two commits each row may have an old and a new position: twice as many and some more can be numbered."""
_CHUNK = 1 << 20
_FEW = 1 << 14
"""Rows that are moved between RAM and file at a time."""


class FileTier(SlowTier):
    """Rows in a directory: `rows.bin`, a log of records, and `map.<n>`, which says where the rows lay at commit `n`.

    A row takes no disk space before it is written: until then its weights are computed and its state is zero. A write
    goes to a position that the committed map does not name, mostly the end of the log, and only when it has succeeded
    does the row move there. So after a crash of the process the directory opens as it was at the last commit, and a
    write that fails changes nothing. After a crash of the machine too, if the drive writes each block wholly or not at
    all: the records of a block may be of the last commit and of later. Where it does not, and wherever else a record
    was changed, its checksum tells, and the row is refused. The log takes at most `1 / (1 - SPARE)` times the space of
    the written rows, and between two commits once more that of the rows rewritten.

    A level of RAM between the slots and the file is exclusive: a row enters it when it leaves the slots, and leaves it
    when a batch that trains takes it back, for then the slots have the only copy that counts. A row that loses its
    place is written to the file if it changed, many at a time. A commit writes all that changed, so a crash loses
    nothing that was committed. Rows that leave the slots unchanged, as those of evaluated batches do, are not offered
    and do not enter.

    Args:
        commits: Of the directory in which the tier has its own, `cache_<number>`.
        rows: 500 million at most.
        initialize: First weights, fp32 `[n, dim]`, of rows, int64 `[n]`, called from any thread; default: zero.
        name_of: A row in words, for messages.
        ram_bytes: Of the level of RAM, for records and the index of their places; 0: there is none.
        keys: Of rows that leave the slots: the lowest lose their places first, and of equal ones who has it longest.
            Called on the thread that writes rows back.

    Attributes:
        direct: The file is read and written past the page cache.
        rows_written: Number of records written to the file.

    Raises:
        Damaged: its files are not what was written.
    """

    def __init__(
        self,
        commits: Commits,
        number: int,
        *,
        rows: int,
        layout: RowLayout,
        initialize: Callable[[Tensor], Tensor] | None = None,
        name_of: Callable[[int], str] = "row {}".format,
        ram_bytes: int = 0,
        keys: Keys | None = None,
    ) -> None:
        super().__init__(rows=rows, layout=layout)
        if rows > _MOST_ROWS:
            raise ValueError(f"a file tier holds {_MOST_ROWS:,} rows at most, not {rows:,}: split the tables")
        self._initialize = initialize
        self._commits = commits
        self._directory = directory = commits.directory / f"cache_{number}"
        self._saved: int | None = None
        """Number of the commit that a map was last saved for, until it is known whether that counts."""
        self._writing = threading.Lock()
        self._moving = threading.Lock()
        """Held by the thread that looks up or changes which row has which place in RAM."""
        self._lost = False
        self.rows_written = 0
        make_directory(directory)
        saved = commits.saved[number]
        self._codes, self._sums, self._positions = self._restored(saved)
        if ram_bytes:
            self.ram_rows = max(1, min(rows, ram_bytes // (layout.record_bytes + RamIndex.BYTES)))
        self._index = RamIndex(self.ram_rows, self._codes, keys=keys)
        self._records = layout.empty(self.ram_rows)
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
        if not self.ram_rows:
            self._read_file(rows, out)
            return
        with self._moving:
            held, places, others = self._held(rows)
            out.index_copy_(0, held, self._records.index_select(0, places))
            self.ram_rows_read += held.numel()
        records = self.layout.empty(others.numel())
        self._read_file(rows[others], records)
        out.index_copy_(0, others, records)

    def write(self, rows: Tensor, records: Tensor) -> None:
        with self._writing:
            self._settle()
            self._log(rows, records)
        if self.ram_rows:
            with self._moving:
                self._index.vacate(self._held(rows)[1].numpy())

    def evict(self, rows: Tensor, records: Tensor) -> None:
        if not self.ram_rows:
            self.write(rows, records)
            return
        with self._writing:
            self._settle()
            with self._moving:
                self._index.vacate(self._held(rows)[1].numpy())  # what they were counts no more
                chosen = self._index.choose(rows.numel())
                dirty, leaving = self._index.dirty(chosen)
            try:
                if dirty.size:
                    self._log(_long(leaving), self._records[_long(dirty)])
                with self._moving:
                    self._index.vacate(chosen)
                    self._records.index_copy_(0, _long(chosen), records[: chosen.size])
                    self._index.enter(rows[: chosen.size].to(torch.int32).numpy(), chosen, dirty=True)
            except BaseException:
                with self._moving:
                    self._index.give_back(chosen)
                raise
            if chosen.size < rows.numel():  # batches that are not moved yet take all other places
                self._log(rows[chosen.size :], records[chosen.size :])

    def take(self, rows: Tensor, batch: int) -> None:
        if self.ram_rows:
            with self._moving:
                self._index.take(self._held(rows)[1].numpy(), batch)

    def moved(self, batch: int) -> None:
        if self.ram_rows:
            with self._moving:
                self._index.moved(batch)

    def keep(self, rows: Tensor) -> None:
        for start in range(0, rows.numel(), _FEW):
            part = rows[start : start + _FEW]
            part = part[_long(np.flatnonzero(self._codes_of(part)))]  # first weights need not be kept
            with self._moving:
                part = part[self._held(part)[2]]
                chosen = self._index.choose(part.numel(), vacant=True)
            part = part[: chosen.size]
            records = self.layout.empty(part.numel())
            try:
                self._read_file(part, records)
                with self._moving:
                    self._records[_long(chosen)] = records
                    self._index.enter(part.to(torch.int32).numpy(), chosen, dirty=False)
            except BaseException:
                with self._moving:
                    self._index.give_back(chosen)
                raise

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
            with self._moving:
                dirty, rows = self._index.dirty()
            for start in range(0, dirty.size, _FEW):
                chunk = slice(start, start + _FEW)
                self._log(_long(rows[chunk]), self._records[_long(dirty[chunk])])
            try:
                self._file.sync()
            except OSError:
                # the kernel reports a lost page once, and then takes the file for sound
                self._lost = True
                raise
            crc = save_map(self._map_of(number), self._codes, self._index.file_codes, self._sums)
            sync_directory(self._directory)
            self._saved = number
            return SavedMap(number=number, positions=self._positions.end, crc32=crc)

    def memory(self) -> Mapping[tuple[Tier, MemoryUse], int]:
        weights = self.layout.weight_bytes
        held = (self._codes, self._sums, self._positions, self._file, self._index)
        found = {
            (Tier.DISK, MemoryUse.ROWS): self._positions.end * weights,
            (Tier.DISK, MemoryUse.STATE): self._positions.end * (self.layout.record_bytes - weights),
            (Tier.HOST, MemoryUse.INDEX): sum(one.nbytes for one in held),
            (Tier.HOST, MemoryUse.STAGING): 2 * STAGING_BYTES,
        }
        if self.ram_rows:
            found[Tier.HOST, MemoryUse.ROWS] = self.ram_rows * weights
            found[Tier.HOST, MemoryUse.STATE] = self._records.nbytes - self.ram_rows * weights
        return found

    def close(self) -> None:
        """Close the files; what was written since the last commit is lost."""
        self._opened.close()

    def _read_file(self, rows: Tensor, out: Tensor) -> None:
        """Copy records out of the file, and first ones of rows that were never written, as `read`."""
        codes = self._codes_of(rows)
        self.rows_read += codes.size
        written = np.flatnonzero(codes)
        if written.size < codes.size:
            absent = torch.from_numpy(np.flatnonzero(codes == 0))
            first = torch.zeros(absent.shape[0], self.layout.width, dtype=self.layout.element)
            if self._initialize is not None:
                self.layout.set_weights(first, self._initialize(rows[absent]))
            out.index_copy_(0, absent, first)
        records: npt.NDArray[np.uint8] = out.view(torch.uint8).numpy()
        wanted = rows.numpy()[written]
        self._file.read(np.abs(codes[written]) - 1, records, places=written, rows=wanted, sums=self._sums[wanted])

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
        with self._moving:
            self._index.logged(rows.numpy(), -after, self._sums, sums)  # negative: written since the last commit
        self._positions.replaced(before)
        self.rows_written += len(data)

    def _settle(self) -> None:
        """Before a write: if the commit counts that a map was saved for, no position of that may be used."""
        if self._saved is None:
            return
        if self._commits.counts(self._saved):
            with self._moving:  # else a code could come out of the index meanwhile, and keep its sign
                for start in range(0, self.rows, _CHUNK):
                    chunk = self._codes[start : start + _CHUNK]
                    new = np.flatnonzero(chunk < 0)
                    chunk[new] = -chunk[new]
                self._index.committed()
            self._positions.commit()
            self._remove_maps_except(self._saved)
        self._saved = None

    def _restored(self, saved: SavedMap | None) -> tuple[Codes, Sums, Positions]:
        if saved is None:
            return *empty_map(self.rows), Positions()
        codes, sums = load_map(self._map_of(saved.number), saved, rows=self.rows)
        used = np.zeros(saved.positions, dtype=np.bool_)
        for start in range(0, self.rows, _CHUNK):
            chunk = codes[start : start + _CHUNK]
            used[chunk[chunk > 0] - 1] = True
        return codes, sums, Positions(end=saved.positions, free=np.flatnonzero(~used))

    def _map_of(self, number: int) -> Path:
        return self._directory / f"map.{number}"

    def _remove_maps_except(self, number: int | None) -> None:
        for path in self._directory.glob("map.*"):
            if path.name != f"map.{number}":
                path.unlink()

    def _held(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which of these rows are in RAM, by their numbers in `rows`, their places, int32, and which are not."""
        codes = torch.from_numpy(self._codes).index_select(0, rows)
        in_ram = codes >= IN_RAM
        return in_ram.nonzero().squeeze(1), codes[in_ram] - IN_RAM, (~in_ram).nonzero().squeeze(1)

    def _codes_of(self, rows: Tensor) -> Ints:
        """The codes of rows, int64, of their records in the file."""
        # torch gathers from large arrays several times as fast as numpy
        found: Ints = torch.from_numpy(self._codes).index_select(0, rows).to(torch.int64).numpy()
        return self._index.file_codes(found) if self.ram_rows else found


def _long(numbers: Int32s | Ints) -> Tensor:
    return torch.from_numpy(numbers).long()
