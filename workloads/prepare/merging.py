"""Lists of distinct ids, sorted by value on disk, merged without ever holding all of them in memory.

Lists are merged range of values by range of values; a range is as large as the memory allows.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl


class CountedIds(NamedTuple):
    """Distinct ids: values uint64 `[ids]`, accesses `[ids]`, first row of each `[ids]`; the latter are integers."""

    values: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.integer]
    first: npt.NDArray[np.integer]


class Stored(NamedTuple):
    """An array of one dimension in a file, from a byte on."""

    path: Path
    dtype: str
    length: int
    offset: int = 0

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Some of the elements."""
        count = (self.length if stop is None else stop) - start
        return np.fromfile(self.path, self.dtype, count, offset=self.offset + start * np.dtype(self.dtype).itemsize)

    def mapped(self) -> npt.NDArray[Any]:
        """All elements, mapped into memory."""
        if not self.length:
            return np.empty(0, self.dtype)
        return np.memmap(self.path, self.dtype, "r", offset=self.offset, shape=self.length)


class SortedIds(NamedTuple):
    """Distinct ids of one column, sorted by value, on disk; `start` is added to the first rows that are there.

    Counts and first rows have one entry more: that of the rows without an id.
    """

    values: Stored
    counts: Stored
    first: Stored
    start: int = 0

    @classmethod
    def whole(cls, folder: Path, column: int, *, start: int = 0) -> Self:
        """The ids of a column as `write_run` wrote them."""
        paths = [column_file(folder, column, part) for part in CountedIds._fields]
        ids = paths[0].stat().st_size // 8
        return cls(Stored(paths[0], "Q", ids), Stored(paths[1], "q", ids + 1), Stored(paths[2], "q", ids + 1), start)

    def read(self, start: int, stop: int) -> CountedIds:
        """Some of the entries; accesses and first rows as int64."""
        counts, first = (part.read(start, stop).astype(np.int64) for part in (self.counts, self.first))
        return CountedIds(self.values.read(start, min(stop, self.values.length)), counts, first + self.start)


def missing_in(runs: Sequence[SortedIds]) -> tuple[int, int]:
    """Rows without an id in all runs, and the first of them; 0 where there is none."""
    entries = [run.read(run.values.length, run.values.length + 1) for run in runs]
    found = [(int(entry.counts[0]), int(entry.first[0])) for entry in entries]
    return sum(rows for rows, _ in found), min((first for rows, first in found if rows), default=0)


def merged(runs: Sequence[SortedIds], *, limit: int) -> Iterator[CountedIds]:
    """The ids of all runs, sorted by value, counts added up, by ranges of values that have at most `limit` entries."""
    runs = [run for run in runs if run.values.length]
    if sum(run.values.length for run in runs) <= limit:
        if runs:
            yield _added([run.read(0, run.values.length) for run in runs])
        return
    # Every `stride`-th value of each run tells where to cut: a range then holds at most half the limit by the sample,
    # and at most one stride more from each run, together another quarter.
    stride = max(1, limit // (4 * len(runs)))
    sample = np.sort(np.concatenate([run.values.mapped()[::stride].copy() for run in runs]))
    bounds = np.unique(sample[:: max(1, limit // (2 * stride))][1:])
    cuts = [[0, *np.searchsorted(run.values.mapped(), bounds), run.values.length] for run in runs]
    for part in range(len(bounds) + 1):
        pieces = [run.read(c[part], c[part + 1]) for run, c in zip(runs, cuts, strict=True) if c[part] < c[part + 1]]
        if pieces:
            yield _added(pieces)


def _added(parts: Sequence[CountedIds]) -> CountedIds:
    """One sorted list of several."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in CountedIds._fields}
    grouped = pl.DataFrame(columns).group_by("values").agg(pl.col("counts").sum(), pl.col("first").min()).sort("values")
    return CountedIds(*(grouped[name].to_numpy() for name in CountedIds._fields))


def write_run(folder: Path, column: int, lists: Iterable[CountedIds], *, missing: tuple[int, int] = (0, 0)) -> int:
    """Write lists one after the other, then what `missing_in` tells of a run; returns the ids."""
    ids = 0
    paths = [column_file(folder, column, part) for part in CountedIds._fields]
    with paths[0].open("wb") as values, paths[1].open("wb") as counts, paths[2].open("wb") as first:
        for part in lists:
            for stream, array in zip((values, counts, first), part, strict=True):
                stream.write(np.ascontiguousarray(array).data)
            ids += len(part.values)
        for stream, number in zip((counts, first), missing, strict=True):
            stream.write(np.int64(number).tobytes())
    return ids


def column_file(folder: Path, column: int, part: str) -> Path:
    """The file of one `part` of a column's ids: a field of `CountedIds`, or another."""
    return folder / f"{column:03}_{part}"
