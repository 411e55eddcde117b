"""Commits of a directory of rows, atomic over all its caches."""

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.row_map import JSON, DamagedTier, sync_directory, write_synced

_NAME = "commits"


class Commits:
    """The commits of a directory with the rows of some caches, which get the optimizer steps of the last one.

    A commit counts for all caches at the moment in which its number is in the directory: every cache prepares it before
    and finishes it after.

    Args:
        directory: Directory of all caches.
        contents: Description of each cache in JSON: its tables, and what the initial values of their rows follow from.

    Raises:
        DamagedTier: what says how often it was committed is missing or damaged.
        ValueError: it was committed with other contents.
    """

    def __init__(self, directory: Path, contents: Sequence[JSON]) -> None:
        self._directory = directory
        self._contents = list(contents)
        self._check()

    @property
    def medium(self) -> str:
        """Name of the rows' medium, for labels."""
        return "file" if all(tier.direct for tier in self._tiers) else "file (page cache)"

    def reopen(self, caches: Sequence[Cache]) -> dict[str, float]:
        """Go on with caches that were opened after this was made: until then no file of a refused directory changes.

        Returns:
            Hyper-parameters of the last commit; empty before the first.

        Raises:
            DamagedTier: one of the caches holds another commit than the directory.
        """
        self._caches = caches
        self._tiers = [cast(FileTier, cache.tier) for cache in caches]  # rows in a directory have no other
        self._number = self._check()  # again: by now the caches are locked
        hyper: dict[str, float] = {}
        if not self._number:
            self._write(0)  # from now on a directory without it has lost it
        for position in range(len(caches) if self._number else 0):
            hyper.update(self._reopen(position))
        return hyper

    def _check(self) -> int:
        number, found = _read(self._directory)
        if number:
            _compare(self._directory, found, self._contents)
        return number

    def _reopen(self, position: int) -> dict[str, float]:
        cache, extra = self._caches[position], self._tiers[position].committed_extra or {}
        if extra.get("commit") != self._number:
            raise DamagedTier(
                f"{self._directory} was committed {self._number} times, cache_{position} in it holds commit "
                f"{extra.get('commit')}: restore the directory from a copy"
            )
        _compare(self._directory / f"cache_{position}", extra["tables"], self._contents[position])
        cache.pool.steps = cast(int, extra["steps"])
        return cast(dict[str, float], extra["hyper"])

    def commit(self, hyper: Mapping[str, float]) -> None:
        """Make the rows that the caches have flushed what the directory holds when it is opened next.

        Raises:
            OSError: it cannot be written; the directory opens as it was at the last commit.
        """
        number = self._number + 1
        for cache, tier, contents in zip(self._caches, self._tiers, self._contents, strict=True):
            tier.prepare_commit({"commit": number, "tables": contents, "steps": cache.pool.steps, "hyper": {**hyper}})
        with ExitStack() as stack:
            for tier in self._tiers:  # whatever interrupts this, or another tier
                stack.callback(self._finish, tier, number)
            # from the moment that the number takes its place this commit counts
            self._write(number)

    def _write(self, number: int) -> None:
        text = json.dumps({"commit": number, "caches": self._contents}).encode()
        beside = self._directory / f"{_NAME}.part"
        write_synced(beside, [b"%s\n%08x\n" % (text, zlib.crc32(text))])
        beside.replace(self._directory / _NAME)
        sync_directory(self._directory)

    def _finish(self, tier: FileTier, number: int) -> None:
        """Finish a tier's commit, unless the commit does not count: no position that it names may be written to."""
        if number_of(self._directory) == number:
            self._number = number
            tier.finish_commit()


def number_of(directory: Path) -> int:
    """The number of the last commit that counts, 0 before the first.

    Raises:
        DamagedTier: the file is missing, and was there, or is not what was written.
    """
    return _read(directory)[0]


def _read(directory: Path) -> tuple[int, JSON]:
    """The number of the last commit, and the contents of the caches."""
    path = directory / _NAME
    if not path.exists():
        left = sorted(directory.glob("cache_*/map*"))
        if left:
            raise DamagedTier(f"{path} is missing, and {left[0]} was committed with it: restore it from a copy")
        return 0, []
    text, _, checksum = path.read_bytes().partition(b"\n")
    if checksum != b"%08x\n" % zlib.crc32(text):
        raise DamagedTier(f"{path} is damaged, its checksum does not match: restore the directory from a copy")
    said = json.loads(text)
    return said["commit"], said["caches"]


def _compare(path: Path, found: JSON, asked: JSON) -> None:
    if found != asked:
        raise ValueError(
            f"{path} holds rows of other tables, in another order or of another seed: {json.dumps(found)}, where these "
            f"are asked for: {json.dumps(asked)}; build with what it was written with, or give an empty directory"
        )
