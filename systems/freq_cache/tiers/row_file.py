"""Records at numbered positions of a file, with their checksums: many reads or writes in flight, past the page cache.

Direct, asynchronous reads were chosen by measurement, on a drive of 66 k random reads of 4 KiB a second at depth 32:
see `results/disk/`. They use no page cache, whose pages hold eight rows of 512 bytes for one that is needed, and
little CPU time: threads that wait for one read each switch more often than the drive answers.
"""

import errno
import mmap
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import types

from systems.freq_cache.compiled import compiled
from systems.freq_cache.tiers.commits import REMEDY, Damaged, Ints, Sums

Bytes = npt.NDArray[np.uint8]

STAGING_BYTES = 4 << 20
"""Bytes of each of a file's two buffers, for reading and for writing."""

_DEPTH = 128
"""Reads and writes in flight at a time."""
_AT_ONCE = 32
"""Minimum completions per wait: a system call costs as much as several reads."""
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
"""Numbers of the system calls `io_setup`, `io_destroy`, `io_submit` and `io_getevents`, by machine."""
_WORDS, _OPERATION, _BUFFER, _SIZE, _OFFSET = 8, 2, 3, 4, 5
"""Linux's `struct iocb`: number of eight-byte words, and indices of fields; word 0 is returned with the event."""
_EVENT_WORDS, _RESULT = 4, 2
"""Linux's `struct io_event`: number of eight-byte words, and index of the result."""

_syscall = cast(Any, types.ExternalFunction("syscall", types.intp(*6 * [types.intp])))

_KEPT = np.uint64(48)
"""The checksum is the bits of the sum from this one on: 16."""


class RowFile:
    """A file of records of `record_bytes` bytes each, a multiple of 4, one behind the other; made if it does not exist.

    The caller keeps the checksums, uint16. Behind its record, a checksum would take the record out of step with the
    drive's blocks, and every scattered write would have to read first. One thread may read while another writes, as
    long as they do not touch the same position. `name_of` names a row, for messages. `nbytes` are its host bytes, the
    two buffers excepted.
    """

    def __init__(self, path: Path, *, record_bytes: int, name_of: Callable[[int], str] = "row {}".format) -> None:
        self.path = path
        self._name_of = name_of
        self._record_bytes = record_bytes
        self._factors = _factors(record_bytes // 4)
        self.nbytes = self._factors.nbytes
        self._blocks = Blocks(path)
        self.direct = self._blocks.direct

    @property
    def positions(self) -> int:
        """Whole records that the file is long; where it ends within a block, a few more."""
        return os.fstat(self._blocks.file).st_size // self._record_bytes

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
        lane, words, sums = self._blocks.writing, records.view(np.uint32), np.empty(len(records), np.uint16)
        with lane.free:
            for part, runs, offsets in self._parts(positions):
                if self._record_bytes % self._blocks.block_bytes:
                    self._blocks.move(lane, runs, write=False)
                _copy_in(lane.buffer.view(np.uint32), offsets // 4, words, part, sums, self._factors)
                self._blocks.move(lane, runs, write=True)
        return sums

    def append(self, position: int, records: Bytes) -> Sums:
        """Write uint8 `[n, record_bytes]`, C-contiguous, at the `n` positions from `position` on, the end of the file.

        Returns their checksums, `[n]`. After an error some may be written.
        """
        lane, words, sums = self._blocks.writing, records.view(np.uint32), np.empty(len(records), np.uint16)
        done, block_bytes = 0, self._blocks.block_bytes
        with lane.free:
            while done < len(records):
                block, before = divmod((position + done) * self._record_bytes, block_bytes)
                if before:  # the end of the record before lies in the same block
                    self._blocks.move(lane, np.array([[block, 1, 0]]), write=False)
                part = np.arange(done, min(len(records), done + (STAGING_BYTES - before) // self._record_bytes))
                offsets = before + np.arange(part.size) * self._record_bytes
                _copy_in(lane.buffer.view(np.uint32), offsets // 4, words, part, sums, self._factors)
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

    def _parts(self, positions: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Records that fit the buffer at a time: which, the runs that they lie in, and their bytes in the buffer."""
        order, record_bytes, block_bytes = np.argsort(positions), self._record_bytes, self._blocks.block_bytes
        most = STAGING_BYTES // (block_bytes * (1 + -(-record_bytes // block_bytes)))
        for start in range(0, order.size, most):
            part = order[start : start + most]
            begin = positions[part] * record_bytes
            first, stop = begin // block_bytes, (begin + record_bytes - 1) // block_bytes + 1
            heads = np.flatnonzero(np.append(True, first[1:] > stop[:-1]))
            ends = np.append(heads[1:], part.size)
            starts, sizes = first[heads], stop[ends - 1] - first[heads]
            places = np.cumsum(sizes) - sizes
            offsets = np.repeat(places - starts, ends - heads) * block_bytes + begin
            yield part, np.stack([starts, sizes, places], axis=1), offsets


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


class Lane:
    """Aligned buffer for reads or for writes, with a context of asynchronous ones; its user holds the lock `free`."""

    def __init__(self) -> None:
        self.buffer = np.frombuffer(mmap.mmap(-1, STAGING_BYTES), np.uint8)
        self.free = threading.Lock()
        self.context = 0


class Blocks:
    """A file read and written in whole blocks; made if it does not exist.

    Past the page cache, many in flight at a time, by Linux's asynchronous input and output. Where file system or kernel
    do without, through the page cache, a run at a time: a block is then a byte.

    Attributes:
        direct: Past the page cache.
        block_bytes: Bytes of a block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading, self.writing = Lane(), Lane()
        self.direct, self.block_bytes = False, 1
        if platform.machine() in _NUMBERS:
            with suppress(OSError):
                self._open_direct()
        if not self.direct:
            self._open(0)

    def move(self, lane: Lane, runs: Ints, *, write: bool) -> None:
        """Read runs of blocks into the buffer of a lane that the caller holds, or write them from there.

        `runs`: int64 `[n, 3]`, the first block in the file, how many, and their place in the buffer in blocks; no two
        share a block. `write`: from the buffer to the file.

        Raises:
            OSError: a run could not be moved as a whole; any of the others may have been.
        """
        if self.direct and len(runs) > 1:
            runs = runs[self._move_at_once(lane, runs, write=write)]
        for run in runs:
            self._move_one(lane, run, write=write)

    def close(self) -> None:
        for lane in (self.reading, self.writing):
            if lane.context:
                _call(_NUMBERS[platform.machine()][1], lane.context, 0)
                lane.context = 0
        os.close(self.file)

    def _open(self, flags: int) -> None:
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
        # no read-ahead: what lies behind a wanted row is not wanted
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)

    def _open_direct(self) -> None:
        self._open(os.O_DIRECT)
        try:
            block_bytes = self._least_block()
            for lane in (self.reading, self.writing):
                lane.context = self._new_context()
        except OSError:
            self.close()
            raise
        self.direct, self.block_bytes = True, block_bytes

    def _move_one(self, lane: Lane, run: Ints, *, write: bool) -> None:
        """Move one run as `move`, by calls that say why they fail."""
        block, size, place = (int(part) * self.block_bytes for part in run)
        rest = lane.buffer.data[place : place + size]
        while rest:
            done = os.pwritev(self.file, [rest], block) if write else os.preadv(self.file, [rest], block)
            done -= done % self.block_bytes  # a block that was cut short is moved again, which says why
            if done == 0:
                raise OSError(errno.EIO, f"ends at byte {block} or soon after: it was cut while in use", str(self.path))
            rest, block = rest[done:], block + done

    def _move_at_once(self, lane: Lane, runs: Ints, *, write: bool) -> Ints:
        """Move runs as `move`, many in flight at a time. Returns the numbers of those that were not moved whole."""
        _, destroy, submit, get_events = _NUMBERS[platform.machine()]
        requests = np.zeros((len(runs), _WORDS), np.int64)
        requests[:, 0] = np.arange(len(runs))
        requests[:, _OPERATION] = int(write) | self.file << 32
        requests[:, _BUFFER] = lane.buffer.ctypes.data + runs[:, 2] * self.block_bytes
        requests[:, _SIZE] = runs[:, 1] * self.block_bytes
        requests[:, _OFFSET] = runs[:, 0] * self.block_bytes
        addresses = requests.ctypes.data + np.arange(len(runs)) * requests.strides[0]
        events, results = np.zeros((_DEPTH, _EVENT_WORDS), np.int64), np.full(len(runs), -errno.EAGAIN, np.int64)
        if _in_flight(lane.context, submit, get_events, addresses, events, results):
            # not even waiting worked: nothing may be in flight when the buffer is used again
            _call(destroy, lane.context, 0)
            lane.context = 0
            lane.context = self._new_context()
        return np.flatnonzero(results != requests[:, _SIZE])

    def _least_block(self) -> int:
        """The least that the drive reads and writes at once, in bytes; 4096 where it does not say."""
        device = os.fstat(self.file).st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        for queue in (block / "queue", block.resolve().parent / "queue"):  # of a partition's drive
            with suppress(OSError, ValueError):
                return int((queue / "logical_block_size").read_text())
        return 4096

    def _new_context(self) -> int:
        made = np.zeros(1, np.int64)
        if _call(_NUMBERS[platform.machine()][0], _DEPTH, made.ctypes.data) != 0:
            why = "no asynchronous access: fs.aio-max-nr is used up, or forbidden"
            raise OSError(errno.EAGAIN, why, str(self.path))
        return int(made[0])


@compiled
def _call(number, first, second):
    return _syscall(number, first, second, 0, 0, 0)


@compiled
def _in_flight(context, submit, get_events, addresses, events, results):
    """Submit requests and wait for them all. `results` gets what each says. Returns how many are still in flight."""
    submitted = 0
    flying = 0
    failed = 0
    refused = False
    while flying or (submitted < addresses.size and not refused):
        room = min(len(events) - flying, addresses.size - submitted)
        if room > 0 and not refused:
            taken = _syscall(submit, context, room, addresses[submitted:].ctypes.data, 0, 0)
            if taken > 0:
                submitted += taken
                flying += taken
            else:
                refused = flying == 0  # else there may be room after those in flight
        if flying:
            least = flying if submitted == addresses.size else min(flying, _AT_ONCE)
            found = _syscall(get_events, context, least, len(events), events.ctypes.data, 0)
            if found < 0:
                failed += 1
                if failed == 1000:  # a signal may interrupt a call, not all of them
                    return flying
                continue
            failed = 0
            for i in range(found):
                results[events[i, 0]] = events[i, _RESULT]
            flying -= found
    return flying
