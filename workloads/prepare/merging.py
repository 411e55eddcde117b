"""Lists of distinct ids, sorted by value on disk, merged without ever holding all of them in memory.

Lists are merged range of values by range of values; a range is as large as the memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl


class Counted(NamedTuple):
    """Distinct ids: values uint64 `[ids]`, accesses int64 `[ids]`, first row of each int64 `[ids]`."""

    values: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]


class Run(Protocol):
    """Distinct ids sorted by value, on disk or in memory."""

    @property
    def length(self) -> int:
        """Distinct ids."""

    def values(self) -> npt.NDArray[np.uint64]:
        """All values, mapped into memory or in it."""

    def read(self, start: int, stop: int) -> Counted:
        """Some of the ids."""


@dataclass(frozen=True)
class FileRun:
    """Counted ids of one column of one raw file; `start` is the row of the dataset at which that file begins."""

    folder: Path
    column: int
    start: int

    @property
    def length(self) -> int:
        """Distinct ids."""
        return column_file(self.folder, self.column, "values").stat().st_size // 8

    def values(self) -> npt.NDArray[np.uint64]:
        """All values, mapped into memory."""
        return np.memmap(column_file(self.folder, self.column, "values"), np.uint64, mode="r")

    def read(self, start: int, stop: int) -> Counted:
        """Some of the ids."""
        paths = [column_file(self.folder, self.column, part) for part in Counted._fields]
        values = np.fromfile(paths[0], np.uint64, stop - start, offset=8 * start)
        counts, first = (np.fromfile(path, np.int64, stop - start, offset=8 * start) for path in paths[1:])
        return Counted(values, counts, first + self.start)


def merged(runs: Sequence[Run], *, limit: int) -> Iterator[Counted]:
    """The ids of all runs, sorted by value, counts added up, by ranges of values that have at most `limit` entries."""
    runs = [run for run in runs if run.length]
    if sum(run.length for run in runs) <= limit:
        if runs:
            yield _added([run.read(0, run.length) for run in runs])
        return
    # Every `stride`-th value of each run tells where to cut: a range then holds at most half the limit by the sample,
    # and at most one stride more from each run, together another quarter.
    stride = max(1, limit // (4 * len(runs)))
    sample = np.sort(np.concatenate([run.values()[::stride] for run in runs]))
    bounds = np.unique(sample[:: max(1, limit // (2 * stride))][1:])
    cuts = [np.concatenate(([0], np.searchsorted(run.values(), bounds), [run.length])) for run in runs]
    for part in range(len(bounds) + 1):
        pieces = [run.read(c[part], c[part + 1]) for run, c in zip(runs, cuts, strict=True) if c[part] < c[part + 1]]
        if pieces:
            yield _added(pieces)


def _added(parts: Sequence[Counted]) -> Counted:
    """One sorted list of several."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in Counted._fields}
    grouped = pl.DataFrame(columns).group_by("values").agg(pl.col("counts").sum(), pl.col("first").min()).sort("values")
    return Counted(*(grouped[name].to_numpy() for name in Counted._fields))


def write_runs(folder: Path, column: int, lists: Iterator[Counted]) -> int:
    """Write lists one after the other; returns the ids."""
    ids = 0
    paths = [column_file(folder, column, part) for part in Counted._fields]
    with paths[0].open("wb") as values, paths[1].open("wb") as counts, paths[2].open("wb") as first:
        for part in lists:
            for stream, array in zip((values, counts, first), part, strict=True):
                stream.write(np.ascontiguousarray(array).data)
            ids += len(part.values)
    return ids


def column_file(folder: Path, column: int, part: str) -> Path:
    """The file of one `part`, a field of `Counted`, of a column's ids."""
    return folder / f"{column:03}_{part}"
