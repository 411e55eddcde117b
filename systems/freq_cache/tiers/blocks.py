"""A file of blocks with many reads or writes in flight: direct I/O, or the page cache where that is not available.

Direct, asynchronous reads were chosen by measurement, on a drive of 66 k random reads of 4 KiB a second at depth 32:
see `results/disk/`. They use no page cache, whose pages hold eight rows of 512 bytes for one that is needed, and
little CPU time: threads that wait for one read each switch more often than the drive answers.
"""

import errno
import mmap
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import types

from systems.freq_cache.compiled import compiled

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

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

_LONG = types.intp
_syscall = cast(Any, types.ExternalFunction("syscall", _LONG(_LONG, _LONG, _LONG, _LONG, _LONG, _LONG)))


class Lane:
    """Aligned buffer for reads or for writes, with a context of asynchronous ones; its user holds the lock `free`."""

    def __init__(self) -> None:
        self.buffer = np.frombuffer(mmap.mmap(-1, STAGING_BYTES), np.uint8)
        self.free = threading.Lock()
        self.context = 0


class Blocks:
    """A file read and written in whole blocks; made if it does not exist.

    Past the page cache, many in flight at a time, by Linux's asynchronous input and output. Where file system, kernel
    or the caller do without, through the page cache, a run at a time: a block is then a byte.

    Attributes:
        direct: Past the page cache.
        block_bytes: Bytes of a block.
    """

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        self.path = path
        self.reading, self.writing = Lane(), Lane()
        self.direct, self.block_bytes = False, 1
        if direct and platform.machine() in _NUMBERS:
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
        late = (
            np.arange(len(runs)) if not self.direct or len(runs) == 1 else self._move_at_once(lane, runs, write=write)
        )
        for number in late:
            self._move_one(lane, runs[number], write=write)

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
