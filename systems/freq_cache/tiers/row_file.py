"""Records at numbered positions of a file, many at a time and in any order.

Plain reads through the page cache, from many threads, were chosen by measurement. On a drive of 60 k random
reads/s, with a page cache of a sixth of the file and records of 132 bytes, 16 threads read 66 k rows/s that way, 53 k
through a memory map and 55 k with O_DIRECT; records of 64 and 516 bytes rank alike. 8 threads read 47 k, 4 threads
37 k. Only a file that lies in the page cache as a whole is read faster through a map (4.5 M against 1.9 M rows/s), and
a map kills the process where a read or a write would report an error. The loops are compiled, because 80,000 calls from
Python take longer than the drive.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from numba import types

from systems.freq_cache.compiled import compiled

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Loop = Callable[[int, Ints, Bytes, Ints, Bytes], int]
One = Callable[[int, Bytes], None]

THREADS = 16
"""Reads at the same time: how deep the drive's queue is filled."""

_LEAST_CHUNK = 64
_CHUNKS_PER_THREAD = 4
_RUN_BYTES = 1 << 16

_SIGNATURE = types.intp(types.int32, types.uintp, types.uintp, types.int64)
_Call = Callable[[int, int, int, int], int]
_pread = cast(_Call, types.ExternalFunction("pread", _SIGNATURE))
_pwrite = cast(_Call, types.ExternalFunction("pwrite", _SIGNATURE))


class RowFile:
    """A file of records of `record_bytes` bytes each; made if it does not exist.

    Any number of threads may read and write at the same time, as long as they do not touch the same position.
    """

    def __init__(self, path: Path, *, record_bytes: int) -> None:
        self.path = path
        self.record_bytes = record_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        # no read-ahead: what lies behind a wanted row is not wanted
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="row-file")

    @property
    def positions(self) -> int:
        """Whole records that the file is long."""
        return os.fstat(self._file).st_size // self.record_bytes

    def read(self, positions: Ints, records: Bytes, places: Ints) -> None:
        """Copy records out: that at `positions[i]` to `records[places[i]]`.

        Args:
            positions: int64 `[n]`, in any order.
            records: uint8 `[m, record_bytes]`, C-contiguous.
            places: int64 `[n]`, each below m.

        Raises:
            OSError: a record could not be read.
        """
        order = np.argsort(positions)
        positions, places = positions[order], places[order]
        size = max(_LEAST_CHUNK, -(-positions.size // (_CHUNKS_PER_THREAD * THREADS)))
        starts = range(0, positions.size, size)

        def read(start: int) -> None:
            part = slice(start, start + size)
            self._each(_read_runs, self._read_one, positions[part], records, places[part])

        if len(starts) == 1:
            read(0)
            return
        chunks = [self._threads.submit(read, start) for start in starts]
        wait(chunks)  # all of them, also after an error: none may touch the caller's memory later
        for chunk in chunks:
            chunk.result()

    def write(self, positions: Ints, records: Bytes) -> None:
        """Overwrite the records at `positions`, int64 `[n]`, each once, all in the file, by uint8 `[n, record_bytes]`.

        Raises:
            OSError: a record could not be written; any of the others may have been.
        """
        # The system lets one thread at a time write to a file, and has it wait for every page that is not in memory. So
        # all threads fetch the pages, and one writes: 161 k rows/s for scattered rows of 512 bytes, which 16 threads
        # write at 26 k and one alone at 54 k; if the pages are in memory, 279 k instead of 330 k.
        self.read(positions, np.empty_like(records), np.arange(positions.size))
        order = np.argsort(positions)
        self._each(_write_runs, self.append, positions[order], records, order)

    def append(self, position: int, records: Bytes) -> None:
        """Write uint8 `[n, record_bytes]`, C-contiguous, at the `n` positions from `position` on, in one piece.

        Raises:
            OSError: they could not all be written.
        """
        rest = records.reshape(-1).data
        offset = position * self.record_bytes
        while rest:
            written = os.pwrite(self._file, rest, offset)
            rest, offset = rest[written:], offset + written

    def sync(self) -> None:
        """Return when everything written is on the drive."""
        os.fsync(self._file)

    def cut(self, positions: int) -> None:
        """Forget everything from a position on."""
        os.ftruncate(self._file, positions * self.record_bytes)

    def close(self) -> None:
        """Close the file and end the threads."""
        self._threads.shutdown()
        os.close(self._file)

    def _each(self, loop: Loop, one: One, positions: Ints, records: Bytes, places: Ints) -> None:
        run = np.empty((max(1, _RUN_BYTES // self.record_bytes), self.record_bytes), dtype=np.uint8)
        start = 0
        while start < positions.size:
            start += loop(self._file, positions[start:], records, places[start:], run)
            if start < positions.size:
                # the loop cannot tell why it stopped: the same call from here raises what is wrong
                one(int(positions[start]), records[places[start]])
                start += 1

    def _read_one(self, position: int, record: Bytes) -> None:
        rest = record.data
        offset = position * self.record_bytes
        while rest:
            read = os.preadv(self._file, [rest], offset)
            if read == 0:
                raise OSError(errno.EIO, f"ends before record {position}: it was cut while in use", str(self.path))
            rest, offset = rest[read:], offset + read


@compiled
def _read_runs(file: int, positions: Ints, records: Bytes, places: Ints, run: Bytes) -> int:
    """Read ascending positions, neighbours in one call through `run`. Returns how many came before a failure."""
    record_bytes = records.shape[1]
    start = 0
    while start < positions.size:
        stop = _end_of_run(positions, start, len(run))
        size = (stop - start) * record_bytes
        if _pread(file, run.ctypes.data, size, positions[start] * record_bytes) != size:
            break
        for i in range(start, stop):
            for byte in range(record_bytes):
                records[places[i], byte] = run[i - start, byte]
        start = stop
    return start


@compiled
def _write_runs(file: int, positions: Ints, records: Bytes, places: Ints, run: Bytes) -> int:
    """Write ascending positions, neighbours in one call through `run`. Returns how many came before a failure."""
    record_bytes = records.shape[1]
    start = 0
    while start < positions.size:
        stop = _end_of_run(positions, start, len(run))
        for i in range(start, stop):
            for byte in range(record_bytes):
                run[i - start, byte] = records[places[i], byte]
        size = (stop - start) * record_bytes
        if _pwrite(file, run.ctypes.data, size, positions[start] * record_bytes) != size:
            break
        start = stop
    return start


@compiled
def _end_of_run(positions: Ints, start: int, longest: int) -> int:
    stop = start + 1
    while stop < positions.size and stop - start < longest and positions[stop] == positions[stop - 1] + 1:
        stop += 1
    return stop
