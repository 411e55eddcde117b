"""Records at numbered positions of a file, many at a time and in any order, their checksums, and free positions."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from systems.freq_cache.compiled import compiled
from systems.freq_cache.tiers.blocks import STAGING_BYTES, Blocks, Bytes, Ints, Lane
from systems.freq_cache.tiers.commits import REMEDY, Damaged, Sums

_KEPT = np.uint64(48)
"""The checksum is the bits of the sum from this one on: 16."""
SPARE = 1 / 3
"""Share of the log that must be free before free positions are reused."""
MOST_POSITIONS = (1 << 30) - 1
"""Maximum positions: of a code's 31 bits one says that the row is in RAM, and one code is for none."""


class RowFile:
    """A file of records of `record_bytes` bytes each, a multiple of 4, one behind the other; made if it does not exist.

    The caller keeps the checksums, uint16. Behind its record, a checksum would take the record out of step with the
    drive's blocks, and every scattered write would have to read first. One thread may read while another writes, as
    long as they do not touch the same position. `name_of` names a row, for messages.
    """

    def __init__(self, path: Path, *, record_bytes: int, name_of: Callable[[int], str] = "row {}".format) -> None:
        self.path = path
        self._name_of = name_of
        self._record_bytes = record_bytes
        self._factors = _factors(record_bytes // 4)
        self._blocks = Blocks(path)
        self.direct = self._blocks.direct

    @property
    def positions(self) -> int:
        """Whole records that the file is long; where it ends within a block, a few more."""
        return os.fstat(self._blocks.file).st_size // self._record_bytes

    @property
    def nbytes(self) -> int:
        """Host bytes, the two buffers excepted."""
        return self._factors.nbytes

    def read(self, positions: Ints, records: Bytes, *, places: Ints, rows: Ints, sums: Sums) -> None:
        """Copy records out: that at `positions[i]` to `records[places[i]]`, uint8 `[m, record_bytes]`, C-contiguous.

        `positions`, `places`: int64 `[n]`. `rows`: which each is, for messages. `sums`: which each got when written.

        Raises:
            OSError: a record could not be read.
            Damaged: one is not what was written.
        """
        lane = self._blocks.reading
        with lane.free:
            for part, runs, offsets in self._parts(positions):
                self._blocks.move(lane, runs, write=False)
                words = lane.buffer.view(np.uint32), offsets // 4, records.view(np.uint32)
                bad = _copy_out(*words, places[part], sums[part], self._factors)
                if bad >= 0:
                    row, place = int(rows[part[bad]]), positions[part[bad]] * self._record_bytes
                    raise Damaged(
                        f"{self.path}: the record of {self._name_of(row)}, at byte {place}, is not what was written, "
                        f"its checksum does not match: {REMEDY}"
                    )

    def write(self, positions: Ints, records: Bytes) -> Sums:
        """Overwrite the records at `positions`, int64 `[n]`, each once, all in the file, by uint8 `[n, record_bytes]`.

        Returns their checksums, `[n]`.

        Raises:
            OSError: a record could not be written; any of the others may have been.
        """
        lane = self._blocks.writing
        in_parts, sums = self._record_bytes % self._blocks.block_bytes, np.empty(len(records), np.uint16)
        with lane.free:
            for part, runs, offsets in self._parts(positions):
                if in_parts:
                    self._blocks.move(lane, runs, write=False)
                self._copy_in(lane, offsets, records, part=part, sums=sums)
                self._blocks.move(lane, runs, write=True)
        return sums

    def append(self, position: int, records: Bytes) -> Sums:
        """Write uint8 `[n, record_bytes]`, C-contiguous, at the `n` positions from `position` on, the end of the file.

        Returns their checksums, `[n]`. After an error some may be written.
        """
        lane, block_bytes = self._blocks.writing, self._blocks.block_bytes
        done, sums = 0, np.empty(len(records), np.uint16)
        with lane.free:
            while done < len(records):
                block, before = divmod((position + done) * self._record_bytes, block_bytes)
                if before:  # the end of the record before lies in the same block
                    self._blocks.move(lane, np.array([[block, 1, 0]]), write=False)
                part = np.arange(done, min(len(records), done + (STAGING_BYTES - before) // self._record_bytes))
                offsets = before + np.arange(part.size) * self._record_bytes
                self._copy_in(lane, offsets, records, part=part, sums=sums)
                count = -(-(before + part.size * self._record_bytes) // block_bytes)
                self._blocks.move(lane, np.array([[block, count, 0]]), write=True)
                done += part.size
        return sums

    def sync(self) -> None:
        """Return when everything written is on the drive."""
        os.fsync(self._blocks.file)

    def cut(self, positions: int) -> None:
        """Forget everything from a position on. Called before anything is read or written."""
        block_bytes = self._blocks.block_bytes
        os.ftruncate(self._blocks.file, positions * self._record_bytes)
        # whole blocks are read: the last one must be there as a whole
        os.ftruncate(self._blocks.file, -(-positions * self._record_bytes // block_bytes) * block_bytes)

    def close(self) -> None:
        self._blocks.close()

    def _copy_in(self, lane: Lane, offsets: Ints, records: Bytes, *, part: Ints, sums: Sums) -> None:
        """Copy the records of the numbers `part` to these bytes of the buffer, and their checksums to `sums`."""
        _copy_in(lane.buffer.view(np.uint32), offsets // 4, records.view(np.uint32), part, sums, self._factors)

    def _parts(self, positions: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Records that fit the buffer at a time: which, the runs that they lie in, and their bytes in the buffer."""
        order, block_bytes = np.argsort(positions), self._blocks.block_bytes
        most = STAGING_BYTES // (block_bytes * (1 + -(-self._record_bytes // block_bytes)))
        for start in range(0, order.size, most):
            part = order[start : start + most]
            yield part, *_runs_of(positions[part], self._record_bytes, block_bytes)


def _runs_of(positions: Ints, record_bytes: int, block_bytes: int) -> tuple[Ints, Ints]:
    """Runs of blocks that hold records at ascending positions, and where in the buffer the records are, in bytes."""
    begin = positions * record_bytes
    first, stop = begin // block_bytes, (begin + record_bytes - 1) // block_bytes + 1
    heads = np.flatnonzero(np.append(True, first[1:] > stop[:-1]))
    ends = np.append(heads[1:], positions.size)
    starts, sizes = first[heads], stop[ends - 1] - first[heads]
    places = np.cumsum(sizes) - sizes
    offsets = np.repeat(places - starts, ends - heads) * block_bytes + begin
    return np.stack([starts, sizes, places], axis=1), offsets


def _factors(count: int) -> npt.NDArray[np.uint64]:
    """Random odd numbers, always the same: those of a checksum are part of the format.

    A number is left out if a change of one byte of its word could leave the kept bits of the sum as they are.
    """
    drawn = np.random.PCG64(2014).random_raw(count + count // 4 + 64) | np.uint64(1)
    sound = np.ones(drawn.size, np.bool_)
    for first in range(0, 32, 8):
        for change in range(1, 256):
            moved = drawn * np.uint64(change << first)
            sound &= np.minimum(moved, -moved) >> _KEPT > 0
    return drawn[sound][:count]


@compiled
def _copy_out(words, offsets, records, places, sums, factors):
    """Copy records of 32-bit words, `[m, words]`, out of a buffer. Returns the number of a damaged one, -1 if none is.

    The checksum is multilinear: the upper bits of the sum of all words, each times a random 64-bit number (Lemire and
    Kaser, "Strongly universal string hashing is fast", The Computer Journal 57, 2014). A change of one byte is always
    noticed; any other stays unnoticed with a chance of 2**-16.
    """
    for i in range(offsets.size):
        place, offset = places[i], offsets[i]
        total = np.uint64(0)
        for word in range(records.shape[1]):
            records[place, word] = words[offset + word]
            total += np.uint64(words[offset + word]) * factors[word]
        if np.uint16(total >> _KEPT) != sums[i]:
            return i
    return -1


@compiled
def _copy_in(words, offsets, records, places, sums, factors):
    """Copy records into a buffer. `sums` gets the checksum of each, at its place among the records."""
    for i in range(offsets.size):
        place, offset = places[i], offsets[i]
        total = np.uint64(0)
        for word in range(records.shape[1]):
            words[offset + word] = records[place, word]
            total += np.uint64(records[place, word]) * factors[word]
        sums[place] = np.uint16(total >> _KEPT)


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


_NONE: Ints = np.empty(0, dtype=np.int64)
