"""Records at numbered positions of a file, many at a time and in any order."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from systems.freq_cache.compiled import compiled
from systems.freq_cache.tiers.blocks import STAGING_BYTES, Bytes, Ints, open_blocks


class RowFile:
    """A file of records of `record_bytes` bytes each, one behind the other; made if it does not exist.

    One thread may read while another writes, as long as they do not touch the same position.
    """

    def __init__(self, path: Path, *, record_bytes: int) -> None:
        self.path = path
        self.record_bytes = record_bytes
        self._blocks = open_blocks(path)

    @property
    def positions(self) -> int:
        """Whole records that the file is long; where it ends within a block, a few more."""
        return os.fstat(self._blocks.file).st_size // self.record_bytes

    def read(self, positions: Ints, records: Bytes, places: Ints) -> None:
        """Copy records out: that at `positions[i]` to `records[places[i]]`, uint8 `[m, record_bytes]`, C-contiguous.

        Raises:
            OSError: a record could not be read.
        """
        lane = self._blocks.reading
        order = np.argsort(positions)
        with lane.free:
            for part, runs, offsets in self._parts(positions, order):
                self._blocks.move(lane, runs, write=False)
                _copy_out(lane.buffer, offsets, records, places[part])

    def write(self, positions: Ints, records: Bytes) -> None:
        """Overwrite the records at `positions`, int64 `[n]`, each once, all in the file, by uint8 `[n, record_bytes]`.

        Raises:
            OSError: a record could not be written; any of the others may have been.
        """
        lane = self._blocks.writing
        order = np.argsort(positions)
        in_parts = self.record_bytes % self._blocks.block_bytes
        with lane.free:
            for part, runs, offsets in self._parts(positions, order):
                if in_parts or self._blocks.fetch_first:
                    self._blocks.move(lane, runs, write=False)
                _copy_in(lane.buffer, offsets, records, part)
                self._blocks.move(lane, runs, write=True)

    def append(self, position: int, records: Bytes) -> None:
        """Write uint8 `[n, record_bytes]`, C-contiguous, at the `n` positions from `position` on, the end of the file.

        Raises:
            OSError: they could not all be written.
        """
        lane, block_bytes = self._blocks.writing, self._blocks.block_bytes
        data = records.reshape(-1)
        start = position * self.record_bytes
        with lane.free:
            while data.size:
                block, before = divmod(start, block_bytes)
                if before:  # the end of the record before lies in the same block
                    self._blocks.move(lane, np.array([[block, 1, 0]]), write=False)
                part = data[: STAGING_BYTES - before]
                lane.buffer[before : before + part.size] = part
                count = -(-(before + part.size) // block_bytes)
                self._blocks.move(lane, np.array([[block, count, 0]]), write=True)
                data, start = data[part.size :], start + part.size

    def sync(self) -> None:
        """Return when everything written is on the drive."""
        os.fsync(self._blocks.file)

    def cut(self, positions: int) -> None:
        """Forget everything from a position on. Called before anything is read or written."""
        block_bytes = self._blocks.block_bytes
        os.ftruncate(self._blocks.file, positions * self.record_bytes)
        # whole blocks are read: the last one must be there as a whole
        os.ftruncate(self._blocks.file, -(-positions * self.record_bytes // block_bytes) * block_bytes)

    def close(self) -> None:
        self._blocks.close()

    def _parts(self, positions: Ints, order: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Records that fit the buffer at a time: which, the runs that they lie in, and their bytes in the buffer."""
        block_bytes = self._blocks.block_bytes
        most = STAGING_BYTES // (block_bytes * (1 + -(-self.record_bytes // block_bytes)))
        for start in range(0, order.size, most):
            part = order[start : start + most]
            runs, offsets = np.empty((part.size, 3), np.int64), np.empty(part.size, np.int64)
            count = _runs_of(positions[part], self.record_bytes, block_bytes, runs, offsets)
            yield part, runs[:count], offsets


@compiled
def _runs_of(positions, record_bytes, block_bytes, runs, offsets):
    """Runs of blocks that hold records at ascending positions, and where in the buffer the records are, in bytes."""
    count, used, end = 0, 0, -1
    for i in range(positions.size):
        begin = positions[i] * record_bytes
        first, stop = begin // block_bytes, (begin + record_bytes - 1) // block_bytes + 1
        if first > end:
            runs[count, 0], runs[count, 1], runs[count, 2] = first, 0, used
            end = first
            count += 1
        runs[count - 1, 1] += max(stop - end, 0)
        used += max(stop - end, 0)
        end = max(stop, end)
        offsets[i] = (runs[count - 1, 2] - runs[count - 1, 0]) * block_bytes + begin
    return count


@compiled
def _copy_out(buffer, offsets, records, places):
    for i in range(offsets.size):
        place, offset = places[i], offsets[i]
        for byte in range(records.shape[1]):
            records[place, byte] = buffer[offset + byte]


@compiled
def _copy_in(buffer, offsets, records, places):
    for i in range(offsets.size):
        place, offset = places[i], offsets[i]
        for byte in range(records.shape[1]):
            buffer[offset + byte] = records[place, byte]
