"""The third step: the counted ids of all files to the rows of a table, on disk, by rank or hashed.

Lists of distinct ids, sorted by value on disk, are merged without ever holding all of them in memory: range of values
by range of values, a range as large as the memory allows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from workloads import DataError
from workloads.manifest import IdRule, Settings
from workloads.prepare.formats import Kind, RawColumn
from workloads.prepare.workspace import Advance, Finished, Job, key_of, step, threads

MOST_ROWS = 2**31 - 1  # ids are int32
_MOST_TRAINING_ROWS = 2**32 - 1  # a count and a row share 64 bits where ids are ranked


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
    """The ids of all runs, sorted by value, counts added up, by ranges of values that have about `limit` entries."""
    runs = [run for run in runs if run.values.length]
    entries = sum(run.values.length for run in runs)
    if entries <= limit:
        if runs:
            yield _added([run.read(0, run.values.length) for run in runs])
        return
    # Every `stride`-th value of each run tells where to cut: a range then holds at most half the limit by the sample,
    # and at most one stride more from each run, together another quarter. Of so many runs that a sample of such strides
    # would not fit, strides are longer, and begin at another place in each run: what is more and less evens out.
    stride = max(1, limit // (4 * len(runs)), entries // limit)
    parts = [run.values.mapped()[stride * number // len(runs) :: stride].copy() for number, run in enumerate(runs)]
    sample = np.sort(np.concatenate(parts))
    begins = [0] * len(runs)
    for ends in _cuts(runs, np.unique(sample[:: max(1, limit // (2 * stride))][1:]), limit=limit):
        pieces = [run.read(*part) for run, *part in zip(runs, begins, ends, strict=True) if part[0] < part[1]]
        if pieces:
            yield _added(pieces)
        begins = ends


def _cuts(runs: Sequence[SortedIds], bounds: npt.NDArray[np.uint64], *, limit: int) -> Iterator[list[int]]:
    """The ids of each run below each bound, then all of them; about `limit` numbers are in memory at a time."""
    at_once = max(1, limit // len(runs))
    for first in range(0, len(bounds), at_once):
        some = bounds[first : first + at_once]
        yield from np.stack([np.searchsorted(run.values.mapped(), some) for run in runs], axis=1).tolist()
    yield [run.values.length for run in runs]


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


@dataclass(frozen=True)
class Vocabulary:
    """Rows of one table for the ids of the training split, on disk.

    Attributes:
        training_ids: Distinct ids in training, the missing one and rare ones included.
        hashed: Whether rows are values modulo the size of the table.
        signed: Whether the values are integers in two's complement.
    """

    folder: Path
    table_rows: int
    training_ids: int
    missing_row: int
    hashed: bool
    signed: bool

    def look_up(self, runs: Sequence[SortedIds], stream: BinaryIO, *, limit: int) -> list[int]:
        """Write the rows of the ids of some runs, int32, run after run; 0 for ids that the training split lacks.

        So many ids of the vocabulary as `limit` are in memory at a time. Returns where each run begins, and the end.
        """
        begins: list[int] = np.cumsum([0, *(run.values.length for run in runs)]).tolist()
        if self.hashed:
            for run in runs:
                stream.write(hashed(run.values.mapped(), self.table_rows, signed=self.signed).astype(np.int32).data)
            return begins
        found = [0] * len(runs)
        known = SortedIds.whole(self.folder, 0).values
        row_of = Stored(self.folder / "rows", "i", known.length)
        for start in range(0, max(known.length, 1), limit):
            stop = min(start + limit, known.length)
            values, rows = known.read(start, stop), row_of.read(start, stop)
            for number, run in enumerate(runs):
                wanted = run.values.mapped()[found[number] :]
                wanted = wanted if stop == known.length else wanted[: np.searchsorted(wanted, values[-1], side="right")]
                stream.seek(4 * (begins[number] + found[number]))
                stream.write(_rows_of(wanted, values, rows).data)
                found[number] += len(wanted)
        return begins


def _rows_of(
    wanted: npt.NDArray[np.uint64], values: npt.NDArray[np.uint64], rows: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """Rows of wanted values, int32 `[n]`, given sorted values and their rows; 0 for others."""
    if not len(values):
        return np.zeros(len(wanted), np.int32)
    position = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[position] == wanted, rows[position], np.int32(0))


def hashed(values: npt.NDArray[np.uint64], rows: int, *, signed: bool) -> npt.NDArray[np.int64]:
    """Values modulo the size of a table, as torchrec's `InMemoryBinaryCriteoIterDataPipe` does with its `hashes`."""
    kind = np.int64 if signed else np.uint64
    return np.mod(values.view(kind), kind(rows)).astype(np.int64)


def hashed_rows(column: RawColumn, settings: Settings) -> int | None:
    """Rows of the table of a column of hashed ids, or None when ids are ranked.

    Raises:
        DataError: the size of the table is not known.
    """
    if settings.ids is IdRule.RANK:
        return None
    sizes = [rows for rows in (column.rows, settings.table_rows) if rows is not None]
    if not sizes:
        raise DataError(
            f"column {column.name}: how many rows has its table? Give --table-rows N, or rows = N in the schema file"
        )
    return min(sizes)


def build_vocabulary(
    job: Job, counted: Sequence[tuple[Finished, int]], training_rows: int, column: int, _: Advance
) -> Vocabulary:
    """Merge the counts of all files and give every id of one column its row, unless an earlier run has.

    `counted` is what `count` made of the files, in time order, each with the row at which the file begins.

    Raises:
        DataError: a table would have more rows than an int32 can tell apart.
    """
    described = job.raw.categorical[column]
    signed, hashed_to = described.kind is Kind.CATEGORICAL_INTEGER, hashed_rows(described, job.settings)
    min_count, limit = job.settings.min_count, job.memory.ids(threads())

    def fill(made: Path) -> dict[str, Any]:
        runs = [SortedIds.whole(file.folder, column, start=start) for file, start in counted]
        missing = missing_in(runs)
        ids = write_run(made, 0, merged(runs, limit=limit), missing=missing)
        entries, missing_row = ids + (missing[0] > 0), 0  # a missing id is ranked like others
        if hashed_to is not None:
            _count_hashed(made, rows=hashed_to, limit=limit, signed=signed)
            table_rows = hashed_to
        else:
            table_rows = _rank(made, entries, training_rows=training_rows, min_count=min_count, limit=limit)
            if table_rows > MOST_ROWS:
                remedy = "raise --min-count, or hash them (--ids hashed)"
                raise DataError(f"column {described.name} has {table_rows:,} ids: {remedy}")
            if missing[0]:
                missing_row = int(Stored(made / "rows", "i", entries).read(ids)[0])
        for part in ("counts", "first"):
            column_file(made, 0, part).unlink()
        return {"table_rows": table_rows, "training_ids": entries, "missing_row": missing_row}

    files = [[file.folder.name, start] for file, start in counted]
    key = key_of(column, files, min_count, hashed_to, signed)
    folder, note = step(job.work / f"vocabulary-{key}", fill)
    return Vocabulary(folder=folder, hashed=hashed_to is not None, signed=signed, **note)


def _rank(folder: Path, entries: int, *, training_rows: int, min_count: int, limit: int) -> int:
    """Write `rows` int32 `[entries]` and `counts` int64 `[table rows]` from the counts and first rows of the entries.

    Rows 1, 2, ... go to the entries in order of decreasing count, ties by first row; row 0 to those below `min_count`.
    A key of both, unique since no two ids of a column have the same first row, sorts the entries: piece by piece in
    memory, then merged.

    The folder holds the files of column 0, and gets the two written. Returns the rows of the table.
    """
    if training_rows > _MOST_TRAINING_ROWS:
        raise DataError(f"ids of {training_rows:,} training rows cannot be ranked: hash them (--ids hashed)")
    written: list[SortedIds] = []

    def run(by: npt.NDArray[np.integer], counts: npt.NDArray[np.int64], places: npt.NDArray[np.integer]) -> SortedIds:
        """A list sorted by a number that is no id; places stand where first rows would."""
        order = np.argsort(by)
        write_run(folder, len(written) + 1, [CountedIds(by[order].astype(np.uint64), counts[order], places[order])])
        written.append(SortedIds.whole(folder, len(written) + 1))
        return written[-1]

    all_counts, all_first = (Stored(column_file(folder, 0, part), "q", entries) for part in ("counts", "first"))
    by_rank, by_place = [], []
    rare = training_rows
    for start in range(0, entries, limit):
        stop = min(start + limit, entries)
        counts, first, places = all_counts.read(start, stop), all_first.read(start, stop), np.arange(start, stop)
        keys = ((_MOST_TRAINING_ROWS - counts).astype(np.uint64) << np.uint64(32)) + first.astype(np.uint64)
        kept = counts >= min_count
        rare -= int(counts[kept].sum())
        by_rank.append(run(keys[kept], counts[kept], places[kept]))
        by_place.append(run(places[~kept], np.zeros_like(places[~kept]), places[~kept]))
    row = 1
    with (folder / "counts").open("wb") as stream:
        stream.write(np.int64(rare).tobytes())
        for _, kept_counts, at in merged(by_rank, limit=limit):
            stream.write(np.ascontiguousarray(kept_counts).data)
            by_place.append(run(at, np.arange(row, row + len(at)), at))
            row += len(at)
    with (folder / "rows").open("wb") as stream:
        for _, rows, _ in merged(by_place, limit=limit):  # rows where counts were; every place is there, and once
            stream.write(rows.astype(np.int32).data)
    for part in (part for ids in written for part in ids[:3]):
        part.path.unlink()
    return row


def _count_hashed(folder: Path, *, rows: int, limit: int, signed: bool) -> None:
    """Write the accesses of every row of a table of hashed ids, int64 `[rows]`, a window of rows at a time.

    The folder holds the files of column 0.
    """
    ids = SortedIds.whole(folder, 0)
    window = min(rows, limit)
    with (folder / "counts").open("wb") as stream:
        for start in range(0, rows, window):
            counts = np.zeros(min(window, rows - start), np.int64)
            for begin in range(0, ids.values.length, limit):
                part = ids.read(begin, min(begin + limit, ids.values.length))
                row = hashed(part.values, rows, signed=signed) - start
                inside = (row >= 0) & (row < len(counts))
                np.add.at(counts, row[inside], part.counts[inside])
            counts[0] += missing_in([ids])[0] if start == 0 else 0
            stream.write(counts.data)
