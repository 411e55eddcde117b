"""Random reads per second of the drive under a directory, with direct I/O."""

import errno
import json
import mmap
import os
import random
import shutil
import subprocess
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
_DEEP = 32
_BLOCK_BYTES = 8 << 20
_FIO_S = 30.0
"""Seconds for fio to start and exit."""


class CannotMeasure(RuntimeError):
    """The drive cannot be measured here; the message has the reason and the remedy."""


def measure(directory: Path, *, file_bytes: int = 1 << 30, seconds: float = 2.0) -> DriveSpeed:
    """Write a file, read blocks of 4 KiB at random offsets, and remove the file.

    Uses fio if it is installed, else `preadv` from as many threads as the queue depth. Both agree on a drive of 60,000
    reads/s; on a faster one the GIL may limit the threads.

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
            os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
            by, (one, deep) = _by_fio(file, seconds) or _by_threads(file, seconds)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotMeasure(
                f"{directory} has no room for {file_bytes / 1e6:,.0f} MB to read: make room, or set TMPDIR"
            ) from None
        raise CannotMeasure(f"{kind} cannot be read past the page cache here ({error.strerror}): {remedy}") from None
    return DriveSpeed(
        file_system=kind,
        read_bytes=_READ_BYTES,
        reads_per_s_depth_1=one,
        reads_per_s_depth_32=deep,
        measured_by=by,
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


def _by_fio(file: Path, seconds: float) -> tuple[str, list[float]] | None:
    """Measure with fio: its name, and reads per second at both depths; None: fio is missing or fails."""
    fio = shutil.which("fio")
    if fio is None:
        return None
    # randrepeat=0: else the second run would read the offsets of the first from the drive's cache
    job = f"--name=reads --rw=randread --bs={_READ_BYTES} --direct=1 --ioengine=libaio --randrepeat=0 --readonly"
    clock = f"--time_based --runtime={round(seconds * 1000)}ms --output-format=json"
    said, figures = {}, []
    for depth in (1, _DEEP):
        command = [fio, *job.split(), *clock.split(), f"--iodepth={depth}", f"--filename={file}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + _FIO_S)
            said = json.loads(done.stdout[done.stdout.index("{") :])  # fio may print notes before it
            figures.append(float(said["jobs"][0]["read"]["iops"]))
        except (subprocess.SubprocessError, ValueError, LookupError):
            return None
    return str(said["fio version"]).replace("-", " ", 1), figures


def _by_threads(file: Path, seconds: float) -> tuple[str, list[float]]:
    """Measure with threads: as `_by_fio`, but never None.

    Raises:
        OSError: the file cannot be read past the page cache.
    """
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    blocks = os.fstat(fd).st_size // _READ_BYTES
    try:
        figures = []
        for depth in (1, _DEEP):
            with ThreadPoolExecutor(depth) as pool:
                start = time.perf_counter()
                counts = pool.map(lambda _: _read(fd, blocks, seconds), range(depth))
                figures.append(sum(counts) / (time.perf_counter() - start))
    finally:
        os.close(fd)
    return "the suite itself", figures


def _read(fd: int, blocks: int, seconds: float) -> int:
    """Number of reads that one thread completes in `seconds`."""
    places, end, count = random.Random(), time.perf_counter() + seconds, 0
    with mmap.mmap(-1, _READ_BYTES) as buffer:  # aligned, as O_DIRECT requires
        while not count or time.perf_counter() < end:
            os.preadv(fd, [buffer], places.randrange(blocks) * _READ_BYTES)
            count += 1
    return count
