"""Commits of a directory of rows, atomic over all its tiers."""

import errno
import fcntl
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.manifest import JSON, Damaged, SavedMap, read_manifest, sync_directory, write_manifest

_NAME, _VERSION = "commits", 4


class Commits:
    """The commits of a directory with some file tiers, whose own directories begin with `cache_`.

    A commit counts for all tiers at once, from the moment in which its manifest takes the place of the last one. Each
    tier has saved a map for it before, and finds out whether it counts before it is written to again.

    Args:
        directory: Made if it does not exist, and locked until `close`.
        contents: Description of each tier in JSON: its tables, their layout, and what the initial values of their rows
            follow from.

    Attributes:
        saved: The map of each tier at the last commit; None: there was none.
        extra: What went with that commit.

    Raises:
        NotADirectoryError: `directory` is something else.
        BlockingIOError: a live process has it open.
        Damaged: what says how often it was committed is missing or damaged.
        ValueError: it was committed with other contents; no file of it has changed.
        OSError: it cannot be read or written.
    """

    def __init__(self, directory: Path, contents: Sequence[JSON]) -> None:
        self._directory = directory
        self._contents = list(contents)
        with ExitStack() as opened:
            opened.callback(os.close, _locked(directory))
            sync_directory(directory)  # what is read now is what a crash of the machine leaves
            last = self._read()
            if last["commit"] and last["contents"] != self._contents:
                raise ValueError(
                    f"{directory} holds rows of other tables, in another order, of another layout or of another seed: "
                    f"{last['contents']}, where these are asked for: {self._contents}; build with what it was written "
                    "with, or give an empty directory"
                )
            maps = [SavedMap(**saved) for saved in last["maps"]]
            self.saved: Sequence[SavedMap | None] = maps or [None] * len(self._contents)
            self.extra: Mapping[str, Any] = last["extra"]
            if not last["commit"]:
                self._write(0, [], {})  # from now on a directory without it has lost it
            self._opened = opened.pop_all()

    def commit(self, tiers: Sequence[FileTier], extra: Mapping[str, JSON]) -> None:
        """Make what has been written to all tiers so far what the directory holds when it is opened next.

        Args:
            tiers: All of them, in the order of their contents.
            extra: Whatever belongs to this state.

        Raises:
            OSError: the commit could not be made; the directory opens as it was at the last one. It may be tried again,
                unless the drive lost rows on their way: then the directory must be opened anew.
        """
        number = self._read()["commit"] + 1
        self._write(number, [asdict(tier.save_map(number)) for tier in tiers], extra)

    def counts(self, number: int) -> bool:
        """Whether the last commit that counts has this number, and a crash of the machine cannot change that.

        Raises:
            OSError: it cannot be said.
        """
        sync_directory(self._directory)
        return bool(self._read()["commit"] == number)

    def close(self) -> None:
        """Unlock the directory."""
        self._opened.close()

    def _read(self) -> dict[str, Any]:
        path = self._directory / _NAME
        if path.exists():
            return read_manifest(path, version=_VERSION, remedy="restore the directory from a copy")
        left = sorted(self._directory.glob("cache_*/map.*"))
        if left:
            raise Damaged(f"{path} is missing, and {left[0]} was committed with it: restore it from a copy")
        return {"commit": 0, "maps": [], "extra": {}}

    def _write(self, number: int, maps: Sequence[Mapping[str, int]], extra: Mapping[str, JSON]) -> None:
        content = {"version": _VERSION, "commit": number, "contents": self._contents, "maps": maps, "extra": {**extra}}
        write_manifest(self._directory / _NAME, content)
        sync_directory(self._directory)


def _locked(directory: Path) -> int:
    """Make a directory this process's own for as long as the returned descriptor is open."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "rows are kept in a directory: give another path", str(directory))
    if not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        sync_directory(directory.parent)
    file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise BlockingIOError(
            errno.EAGAIN, "in use by another live process: wait for it, or give another directory", str(directory)
        ) from None
    return file
