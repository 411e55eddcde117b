"""Records at numbered positions of a file, many at a time and in any order, each with a checksum."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from systems.freq_cache.compiled import compiled, inlined
from systems.freq_cache.tiers.blocks import STAGING_BYTES, Bytes, Ints, Lane, open_blocks
from systems.freq_cache.tiers.row_map import REMEDY, DamagedTier

SUM_BYTES = 4
"""Of the checksum that lies behind every record. There, a partial overwrite of the log renews it with its record, no
memory is taken, and one request reads both."""
_HALF = np.uint64(32)


class RowFile:
    """A file of records of `record_bytes` bytes each, a multiple of 4, one behind the other; made if it does not exist.

    A record is written for a row, and its checksum is of both: what was not written for a row is not read as one. One
    thread may read while another writes, as long as they do not touch the same position.

    Args:
        path: Of the file.
        record_bytes: Without the checksum.
        name_of: A row in words, for messages.

    Attributes:
        direct: It is read and written past the page cache.
    """

    def __init__(self, path: Path, *, record_bytes: int, name_of: Callable[[int], str] = "row {}".format) -> None:
        self.path = path
        self._name_of = name_of
        self._stride = record_bytes + SUM_BYTES
        self._factors = _factors(record_bytes // 4 + 2)
        self._blocks = open_blocks(path)
        self.direct = self._blocks.direct

    @property
    def positions(self) -> int:
        """Whole records that the file is long; where it ends within a block, a few more."""
        return os.fstat(self._blocks.file).st_size // self._stride

    @property
    def nbytes(self) -> int:
        """Host bytes, the two buffers excepted."""
        return self._factors.nbytes

    def read(self, positions: Ints, records: Bytes, *, places: Ints, rows: Ints) -> None:
        """Copy records out: that at `positions[i]` to `records[places[i]]`, uint8 `[m, record_bytes]`, C-contiguous.

        Args:
            positions: int64 `[n]`.
            records: Where to.
            places: int64 `[n]`.
            rows: For which each was written, int64 `[n]`.

        Raises:
            OSError: a record could not be read.
            DamagedTier: one is not what was written for its row.
        """
        lane = self._blocks.reading
        order = np.argsort(positions)
        with lane.free:
            for part, runs, offsets in self._parts(positions, order):
                self._blocks.move(lane, runs, write=False)
                words = lane.buffer.view(np.uint32), offsets // 4, records.view(np.uint32)
                bad = _copy_out(*words, places[part], rows[part], self._factors)
                if bad >= 0:
                    raise DamagedTier(
                        f"{self.path}: the record of {self._name_of(int(rows[part[bad]]))}, at byte "
                        f"{positions[part[bad]] * self._stride}, is not what was written, its checksum does not match: "
                        f"{REMEDY}"
                    )

    def write(self, positions: Ints, records: Bytes, *, rows: Ints) -> None:
        """Overwrite the records at `positions`, int64 `[n]`, each once, all in the file, by uint8 `[n, record_bytes]`.

        `rows`: for which, int64 `[n]`.

        Raises:
            OSError: a record could not be written; any of the others may have been.
        """
        lane = self._blocks.writing
        order = np.argsort(positions)
        in_parts = self._stride % self._blocks.block_bytes
        with lane.free:
            for part, runs, offsets in self._parts(positions, order):
                if in_parts or self._blocks.fetch_first:
                    self._blocks.move(lane, runs, write=False)
                self._copy_in(lane, offsets, records, part=part, rows=rows)
                self._blocks.move(lane, runs, write=True)

    def append(self, position: int, records: Bytes, *, rows: Ints) -> None:
        """Write uint8 `[n, record_bytes]`, C-contiguous, at the `n` positions from `position` on, the end of the file.

        `rows`: for which, int64 `[n]`.

        Raises:
            OSError: they could not all be written.
        """
        lane, block_bytes = self._blocks.writing, self._blocks.block_bytes
        done = 0
        with lane.free:
            while done < len(records):
                block, before = divmod((position + done) * self._stride, block_bytes)
                if before:  # the end of the record before lies in the same block
                    self._blocks.move(lane, np.array([[block, 1, 0]]), write=False)
                part = np.arange(done, min(len(records), done + (STAGING_BYTES - before) // self._stride))
                offsets = before + np.arange(part.size) * self._stride
                self._copy_in(lane, offsets, records, part=part, rows=rows)
                count = -(-(before + part.size * self._stride) // block_bytes)
                self._blocks.move(lane, np.array([[block, count, 0]]), write=True)
                done += part.size

    def sync(self) -> None:
        """Return when everything written is on the drive."""
        os.fsync(self._blocks.file)

    def cut(self, positions: int) -> None:
        """Forget everything from a position on. Called before anything is read or written."""
        block_bytes = self._blocks.block_bytes
        os.ftruncate(self._blocks.file, positions * self._stride)
        # whole blocks are read: the last one must be there as a whole
        os.ftruncate(self._blocks.file, -(-positions * self._stride // block_bytes) * block_bytes)

    def close(self) -> None:
        self._blocks.close()

    def _copy_in(self, lane: Lane, offsets: Ints, records: Bytes, *, part: Ints, rows: Ints) -> None:
        """Copy the records of the numbers `part`, sealed, to these bytes of the buffer."""
        words = lane.buffer.view(np.uint32), offsets // 4, records.view(np.uint32)
        _copy_in(*words, part, rows[part], self._factors)

    def _parts(self, positions: Ints, order: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Records that fit the buffer at a time: which, the runs that they lie in, and their bytes in the buffer."""
        block_bytes = self._blocks.block_bytes
        most = STAGING_BYTES // (block_bytes * (1 + -(-self._stride // block_bytes)))
        for start in range(0, order.size, most):
            part = order[start : start + most]
            runs, offsets = np.empty((part.size, 3), np.int64), np.empty(part.size, np.int64)
            count = _runs_of(positions[part], self._stride, block_bytes, runs, offsets)
            yield part, runs[:count], offsets


@compiled
def _runs_of(positions, stride, block_bytes, runs, offsets):
    """Runs of blocks that hold records at ascending positions, and where in the buffer the records are, in bytes."""
    count, used, end = 0, 0, -1
    for i in range(positions.size):
        begin = positions[i] * stride
        first, stop = begin // block_bytes, (begin + stride - 1) // block_bytes + 1
        if first > end:
            runs[count, 0], runs[count, 1], runs[count, 2] = first, 0, used
            end = first
            count += 1
        runs[count - 1, 1] += max(stop - end, 0)
        used += max(stop - end, 0)
        end = max(stop, end)
        offsets[i] = (runs[count - 1, 2] - runs[count - 1, 0]) * block_bytes + begin
    return count


def _factors(count: int) -> npt.NDArray[np.uint64]:
    """Random odd numbers, always the same: those of a checksum are part of the format."""
    return np.random.PCG64(2014).random_raw(count) | np.uint64(1)


@inlined
def _begin(row, factors):
    """Sum of a record without words. It is not zero, so that a hole in the file is no record of zeros."""
    return factors[-1] + np.uint64(row) * factors[-2]


@compiled
def _copy_out(words, offsets, records, places, rows, factors):
    """Copy records of 32-bit words, `[m, words]`, out of a buffer. Returns the number of a damaged one, -1 if none is.

    The checksum is multilinear: the upper half of the sum of all words, each times a random 64-bit number (Lemire and
    Kaser, "Strongly universal string hashing is fast", The Computer Journal 57, 2014). Any change stays unnoticed with
    a chance of 2**-32.
    """
    for i in range(offsets.size):
        place, offset = places[i], offsets[i]
        total = _begin(rows[i], factors)
        for word in range(records.shape[1]):
            records[place, word] = words[offset + word]
            total += np.uint64(words[offset + word]) * factors[word]
        if np.uint32(total >> _HALF) != words[offset + records.shape[1]]:
            return i
    return -1


@compiled
def _copy_in(words, offsets, records, places, rows, factors):
    """Copy records into a buffer, each with its checksum behind it."""
    for i in range(offsets.size):
        place, offset = places[i], offsets[i]
        total = _begin(rows[i], factors)
        for word in range(records.shape[1]):
            words[offset + word] = records[place, word]
            total += np.uint64(records[place, word]) * factors[word]
        words[offset + records.shape[1]] = np.uint32(total >> _HALF)
