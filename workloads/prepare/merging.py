"""Lists of distinct ids, sorted by value on disk, merged without ever holding all of them in memory.

Lists are merged range of values by range of values; a range is as large as the memory allows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl


class Counted(NamedTuple):
    """Distinct ids: values uint64 `[ids]`, accesses `[ids]`, first row of each `[ids]`; the latter are integers."""

    values: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.integer]
    first: npt.NDArray[np.integer]


@dataclass(frozen=True)
class Run:
    """Distinct ids of one column, sorted by value, in files: of a raw file, or of one block of it.

    Attributes:
        begin: Entry of the files with which the run begins; it has `length`.
        start: Added to the first rows that the file has.
        counts_dtype: Of the accesses and first rows in the files.
    """

    folder: Path
    column: int
    begin: int
    length: int
    start: int
    counts_dtype: type[np.integer] = np.int64

    @classmethod
    def whole(cls, folder: Path, column: int, *, start: int = 0) -> Self:
        """All entries of the files of a column."""
        return cls(folder, column, 0, column_file(folder, column, "values").stat().st_size // 8, start)

    def values(self) -> npt.NDArray[np.uint64]:
        """All values, mapped into memory."""
        if not self.length:
            return np.empty(0, np.uint64)
        path = column_file(self.folder, self.column, "values")
        return np.memmap(path, np.uint64, "r", offset=8 * self.begin, shape=self.length)

    def read(self, start: int, stop: int) -> Counted:
        """Some of the entries; accesses and first rows as int64."""

        def part(name: str, dtype: type[np.integer]) -> npt.NDArray[np.integer]:
            offset = (self.begin + start) * np.dtype(dtype).itemsize
            return np.fromfile(column_file(self.folder, self.column, name), dtype, stop - start, offset=offset)

        counts, first = (part(name, self.counts_dtype).astype(np.int64) for name in ("counts", "first"))
        return Counted(part("values", np.uint64), counts, first + self.start)  # type: ignore[arg-type]


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
    sample = np.sort(np.concatenate([run.values()[::stride].copy() for run in runs]))
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


def write_run(folder: Path, column: int, lists: Iterable[Counted]) -> int:
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
    """The file of one `part` of a column's ids: a field of `Counted`, or another."""
    return folder / f"{column:03}_{part}"
