"""Random reads per second of the drive under a directory, with direct I/O."""

import mmap
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

from suite.records.measured import DriveSpeed

IN_MEMORY = ("tmpfs", "ramfs")
"""File systems in memory, which may accept O_DIRECT too."""
_READ_BYTES = 4096
_BLOCK_BYTES = 8 << 20


class CannotMeasure(RuntimeError):
    """The drive cannot be measured here; the message has the reason and the remedy."""


def measure(directory: Path, *, file_bytes: int = 1 << 30, seconds: float = 2.0) -> DriveSpeed:
    """Write a file, read blocks of 4 KiB at random offsets, and remove the file.

    As many threads as the queue depth read by `preadv`. On a drive of 60,000 reads/s fio measures the same; on a faster
    one the GIL may limit the threads.

    Args:
        directory: Folder for the file.
        file_bytes: Size of the file; far larger than a drive's own cache.
        seconds: Duration of each measurement, at depth 1 and 32. Writing the file takes additional time.

    Raises:
        CannotMeasure: there is no drive, it cannot be written, or it does not support direct I/O.
    """
    kind = file_system(directory)
    remedy = f"set TMPDIR to a directory on a local drive, not {directory}"
    if kind in IN_MEMORY:
        raise CannotMeasure(f"{kind} lies in memory and is no drive: {remedy}")
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix="drive-") as folder:
            file = Path(folder) / "reads.bin"
            _write(file, file_bytes)
            one, deep = (_reads_per_s(file, depth, seconds) for depth in (1, 32))
    except OSError as error:
        raise CannotMeasure(f"{kind} cannot be measured here ({error.strerror}): {remedy}") from None
    return DriveSpeed(
        file_system=kind,
        read_bytes=_READ_BYTES,
        reads_per_s_depth_1=one,
        reads_per_s_depth_32=deep,
        measured_by="the suite itself",
    )


def file_system(directory: Path) -> str:
    """The kernel's name of the file system of an existing directory, such as `ext4`."""
    there = directory.resolve()
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((kinds[folder] for folder in (there, *there.parents) if folder in kinds), "unknown")


def _write(file: Path, file_bytes: int) -> None:
    """Write random bytes, which a drive cannot compress or deduplicate, and drop them from the page cache."""
    random_bytes = np.random.default_rng()
    with file.open("wb") as stream:
        for start in range(0, file_bytes, _BLOCK_BYTES):
            stream.write(random_bytes.bytes(min(_BLOCK_BYTES, file_bytes - start)))
        stream.flush()
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _reads_per_s(file: Path, depth: int, seconds: float) -> float:
    """Reads per second of `depth` threads.

    Raises:
        OSError: the file cannot be read past the page cache.
    """
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    blocks = os.fstat(fd).st_size // _READ_BYTES
    try:
        with ThreadPoolExecutor(depth) as pool:
            start = time.perf_counter()
            counts = pool.map(lambda _: _read(fd, blocks, seconds), range(depth))
            return sum(counts) / (time.perf_counter() - start)
    finally:
        os.close(fd)


def _read(fd: int, blocks: int, seconds: float) -> int:
    """Number of reads that one thread completes in `seconds`."""
    places, end, count = random.Random(), time.perf_counter() + seconds, 0
    with mmap.mmap(-1, _READ_BYTES) as buffer:  # aligned, as O_DIRECT requires
        while not count or time.perf_counter() < end:
            os.preadv(fd, [buffer], places.randrange(blocks) * _READ_BYTES)
            count += 1
    return count
