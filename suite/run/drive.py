"""How many random reads the drive under a directory gives, past the page cache."""

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
"""File systems that are on no drive, although they may accept O_DIRECT."""
_READ_BYTES = 4096
_DEEP = 32
_BLOCK_BYTES = 8 << 20
_FIO_S = 30.0
"""For fio to start and end."""


class CannotMeasure(RuntimeError):
    """The drive cannot be measured here; the message says why, and what to do."""


def measure(directory: Path, *, file_bytes: int = 1 << 30, seconds: float = 2.0) -> DriveSpeed:
    """Write a file, read 4 KiB at random places of it, and remove it.

    By fio where it is installed, else with `preadv` from as many threads as reads may wait. Both agree on a drive of
    60,000 reads/s; on a faster one Python's lock may bound the second way.

    Args:
        directory: Where the file goes.
        file_bytes: Its size; far more than a drive's own cache.
        seconds: Of each of both measurements, at depth 1 and 32. Writing takes its time besides.

    Raises:
        CannotMeasure: no drive is there, it cannot be written, or it cannot be read past the page cache.
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
    """Kind of the file system of a directory that exists, as the kernel names it, such as `ext4`."""
    there = directory.resolve()
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((kinds[folder] for folder in (there, *there.parents) if folder in kinds), "unknown")


def _write(file: Path, file_bytes: int) -> None:
    """Bytes that no drive can compress or store once, on the drive and nowhere else."""
    random_bytes = np.random.default_rng()
    with file.open("wb") as stream:
        for start in range(0, file_bytes, _BLOCK_BYTES):
            stream.write(random_bytes.bytes(min(_BLOCK_BYTES, file_bytes - start)))
        stream.flush()
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _by_fio(file: Path, seconds: float) -> tuple[str, list[float]] | None:
    """Who measured, and reads per second at both depths; None: fio is missing or cannot do it."""
    fio = shutil.which("fio")
    if fio is None:
        return None
    # randrepeat=0: else the second run would find the places of the first in caches of the drive
    job = f"--name=reads --rw=randread --bs={_READ_BYTES} --direct=1 --ioengine=libaio --randrepeat=0 --readonly"
    clock = f"--time_based --runtime={round(seconds * 1000)}ms --output-format=json"
    said, figures = {}, []
    for depth in (1, _DEEP):
        command = [fio, *job.split(), *clock.split(), f"--iodepth={depth}", f"--filename={file}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + _FIO_S)
            said = json.loads(done.stdout[done.stdout.index("{") :])  # notes may come first
            figures.append(float(said["jobs"][0]["read"]["iops"]))
        except (subprocess.SubprocessError, ValueError, LookupError):
            return None
    return str(said["fio version"]).replace("-", " ", 1), figures


def _by_threads(file: Path, seconds: float) -> tuple[str, list[float]]:
    """As `_by_fio`, always.

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
    """Reads that one thread gets done."""
    places, end, count = random.Random(), time.perf_counter() + seconds, 0
    with mmap.mmap(-1, _READ_BYTES) as buffer:  # aligned, as O_DIRECT wants it
        while not count or time.perf_counter() < end:
            os.preadv(fd, [buffer], places.randrange(blocks) * _READ_BYTES)
            count += 1
    return count
