"""The number of the last commit of all caches of a directory: what makes several commits one."""

from __future__ import annotations

import os
from pathlib import Path

from systems.freq_cache.tiers.row_map import DamagedTier, sync_directory

_NAME = "commits"


def write(directory: Path, number: int) -> None:
    """Say that commit `number` counts; before, the one before it does.

    Raises:
        OSError: it could not be said, and does not count.
    """
    beside = directory / f"{_NAME}.part"
    with beside.open("w") as file:
        file.write(f"{number}\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(directory / _NAME)
    sync_directory(directory)


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
