"""Commits of a directory of rows: all its caches together, whatever happens in between."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from systems.freq_cache.cache import Cache
from systems.freq_cache.tiers import DamagedTier, FileTier, sync_directory, write_synced

_NAME = "commits"


class Commits:
    """The commits of a directory with the rows of some caches, which get the optimizer steps of the last one.

    A commit counts for all caches at the moment in which its number is in the directory: every cache prepares it before
    and finishes it after.

    Attributes:
        hyper: Hyper-parameters of the last commit; empty before the first.

    Raises:
        DamagedTier: one of the caches holds another commit than the directory.
        ValueError: it was committed with other tables.
    """

    def __init__(self, directory: Path, caches: Sequence[Cache]) -> None:
        self._directory = directory
        self._caches = caches
        self._tiers = [cast(FileTier, cache.tier) for cache in caches]  # rows in a directory have no other
        self._number = read(directory)
        self.hyper: dict[str, float] = {}
        for position in range(len(caches) if self._number else 0):
            self._reopen(position)

    def _reopen(self, position: int) -> None:
        cache, extra = self._caches[position], self._tiers[position].committed_extra or {}
        if extra.get("commit") != self._number:
            raise DamagedTier(
                f"{self._directory} was committed {self._number} times, cache_{position} in it holds commit "
                f"{extra.get('commit')}: restore the directory from a copy"
            )
        names = list(cache.tables)
        if extra["tables"] != names:
            raise ValueError(
                f"{self._directory} holds rows of the tables {extra['tables']} where these are asked for: {names}; "
                "build with the tables that it was written with, or give an empty directory"
            )
        cache.pool.steps = cast(int, extra["steps"])
        self.hyper.update(cast(dict[str, float], extra["hyper"]))

    def commit(self, hyper: Mapping[str, float]) -> None:
        """Make the rows that the caches have flushed what the directory holds when it is opened next.

        Raises:
            OSError: it cannot be written; the directory opens as it was at the last commit.
        """
        number = self._number + 1
        for cache, tier in zip(self._caches, self._tiers, strict=True):
            tier.prepare_commit(
                {"commit": number, "tables": list(cache.tables), "steps": cache.pool.steps, "hyper": {**hyper}}
            )
        beside = self._directory / f"{_NAME}.part"
        write_synced(beside, [f"{number}\n".encode()])
        with ExitStack() as stack:
            for tier in self._tiers:  # whatever interrupts this, or another tier
                stack.callback(self._finish, tier, number)
            # from the moment that the number takes its place this commit counts
            beside.replace(self._directory / _NAME)
            sync_directory(self._directory)

    def _finish(self, tier: FileTier, number: int) -> None:
        """Finish a tier's commit, unless the commit does not count: no position that it names may be written to."""
        if read(self._directory) == number:
            self._number = number
            tier.finish_commit()


def read(directory: Path) -> int:
    """The number of the last commit that counts, 0 before the first.

    Raises:
        DamagedTier: the file is not what was written.
    """
    path = directory / _NAME
    if not path.exists():
        return 0
    try:
        return int(path.read_text())
    except ValueError as error:
        raise DamagedTier(f"{path} is not the number of a commit: restore the directory from a copy") from error
