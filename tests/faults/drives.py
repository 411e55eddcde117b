"""Drives for tests: one of a few megabytes that can be full or lose its power, and what one with a cache may keep."""

import fcntl
import os
import random
import resource
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SHUT_DOWN, _WITHOUT_ITS_LOG = 0x8004587D, 2
"""`ioctl` of ext4 and xfs, made for tests as this one: nothing reaches the drive any more."""
SECTOR = 512
"""A drive writes so many bytes wholly or not at all."""


class SmallDrive:
    """A file system of its own, in a file.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.path = folder / "drive"
        self.path.mkdir()
        self._image = folder / "drive.img"
        with self._image.open("wb") as file:
            file.truncate(size_bytes)

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        _run("umount", str(self.path))

    def cut_power(self) -> None:
        """Nothing that is written or synced from now on takes effect, and neither does what was not yet synced."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _SHUT_DOWN, struct.pack("I", _WITHOUT_ITS_LOG))
        finally:
            os.close(directory)


@contextmanager
def small_drive(folder: Path, size_bytes: int) -> Iterator[SmallDrive]:
    """A drive with an empty ext4; skips the test where none may be mounted."""
    drive = SmallDrive(folder, size_bytes)
    try:
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(drive._image))
        drive.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file cannot be mounted as a drive here, which takes root: {error}")
    try:
        yield drive
    finally:
        drive.unmount()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond a size: a write across it is cut short, one behind it fails with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def before_each_step(act: Callable[[], object]) -> Iterator[None]:
    """Act before every sync of a file or directory, and before every file that takes another one's place."""

    def after_act(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            act()
            return original(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", after_act(os.fsync))
        patch.setattr(Path, "replace", after_act(Path.replace))
        yield


class CachingDrive:
    """What may be left of the files of a directory when a drive loses power that keeps writes in a cache of its own.

    Of everything written to a file since it was last synced each sector may have arrived or not, in any order, and the
    names in a directory are those after any of the changes since that directory was synced.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[int, int] = {}
        self._contents: dict[int, list[bytes]] = {}
        """By inode: as last synced, and every other since."""
        self._names: dict[Path, list[dict[str, int]]] = {}
        """By folder: inodes by name, as last synced and after every change since."""

    def look(self) -> None:
        """Take note of what is written and named now."""
        for folder in (self._directory, *(path for path in self._directory.rglob("*") if path.is_dir())):
            names = {path.name: self._content_of(path) for path in folder.iterdir() if path.is_file()}
            versions = self._names.setdefault(folder, [{}])
            if versions[-1] != names:
                versions.append(names)

    def _content_of(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)  # its number is given to no other file
        versions, content = self._contents.setdefault(inode, [b""]), path.read_bytes()
        if versions[-1] != content:
            versions.append(content)
        return inode

    def synced(self, file: int) -> None:
        """What was noted of a file or a directory last has arrived."""
        path, inode = Path(f"/proc/self/fd/{file}").readlink(), os.fstat(file).st_ino
        versions: list[object] | None = self._names.get(path) if path.is_dir() else self._contents.get(inode)
        if versions is not None:
            del versions[:-1]

    def leave(self, target: Path, chance: random.Random) -> None:
        """Write what may be left into a new directory."""
        for folder, versions in self._names.items():
            into = target / folder.relative_to(self._directory)
            into.mkdir(parents=True, exist_ok=True)
            for name, inode in chance.choice(versions).items():
                (into / name).write_bytes(_mixed(self._contents[inode], chance))

    def close(self) -> None:
        for file in self._held.values():
            os.close(file)


def _mixed(versions: list[bytes], chance: random.Random) -> bytes:
    """Sectors of one version or the other; sometimes all of one."""
    if len(versions) == 1 or chance.random() < 0.3:
        return chance.choice(versions)
    size = len(chance.choice(versions))
    chosen = []
    for start in range(0, size, SECTOR):
        stop = min(start + SECTOR, size)
        chosen.append(chance.choice(versions)[start:stop].ljust(stop - start, b"\0"))
    return b"".join(chosen)
