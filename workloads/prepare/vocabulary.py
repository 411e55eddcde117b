"""From ids counted file by file to rows of a table, without ever holding a table's ids in memory.

Every list of ids is sorted by value on disk. Lists are merged range of values by range of values, and ranked range of
counts by range of counts; a range is as large as the memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from workloads.errors import DataError
from workloads.prepare.memory_bound import Memory, threads
from workloads.prepare.parsing import Advance, unheard
from workloads.prepare.staging import IdBlock, StagedFile
from workloads.prepare.workspace import done, key_of, step

LAYOUT = 1  # of counting and vocabulary folders
MOST_ROWS = 2**31 - 1  # ids are int32
_COUNT_CELLS = 1024
_ROW_CELLS = 1024


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
class _BlockRun:
    """The dictionary of one staged block; `leading` where only its first rows count."""

    file: StagedFile
    column: int
    block: int
    leading: IdBlock | None = None

    @property
    def length(self) -> int:
        return self.file.distinct(self.column, self.block) if self.leading is None else len(self.leading.values)

    def values(self) -> npt.NDArray[np.uint64]:
        return self.file.values(self.column, self.block) if self.leading is None else self.leading.values

    def read(self, start: int, stop: int) -> Counted:
        if self.leading is None:
            ids = self.file.ids(self.column, self.block, slice(start, stop))
        else:
            ids = self.leading.entries(slice(start, stop))
        first = ids.first + np.int64(self.file.start(self.block))
        return Counted(ids.values, ids.counts.astype(np.int64), first)


@dataclass(frozen=True)
class _FileRun:
    """Counted ids of one column of one raw file; `start` is the row of the dataset at which that file begins."""

    folder: Path
    column: int
    start: int

    @property
    def length(self) -> int:
        return _path(self.folder, self.column, "values").stat().st_size // 8

    def values(self) -> npt.NDArray[np.uint64]:
        return np.memmap(_path(self.folder, self.column, "values"), np.uint64, mode="r")

    def read(self, start: int, stop: int) -> Counted:
        paths = [_path(self.folder, self.column, part) for part in Counted._fields]
        values = np.fromfile(paths[0], np.uint64, stop - start, offset=8 * start)
        counts, first = (np.fromfile(path, np.int64, stop - start, offset=8 * start) for path in paths[1:])
        return Counted(values, counts, first + self.start)


def merged(runs: Sequence[Run], *, limit: int) -> Iterator[Counted]:
    """The ids of all runs, sorted by value, counts added up, range of values by range of values.

    Args:
        runs: Runs, any number.
        limit: Entries of runs held at a time.
    """
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


@dataclass(frozen=True)
class CountTask:
    """Count the ids of one file.

    Attributes:
        staged: Its staging folder.
        work: The work folder.
        memory: The bound on memory.
        columns: Categorical columns.
        integers: Positions of the dense columns that hold integers.
        rows: Leading rows of the file that train.
    """

    staged: Path
    work: Path
    memory: Memory
    columns: int
    integers: tuple[int, ...]
    rows: int


def count(task: CountTask, advance: Advance = unheard) -> Path:
    """Count the training ids of each column of one file, unless an earlier run has.

    Returns:
        A folder that holds, for each column, its ids by value with their counts and first rows.
    """
    folder = task.work / f"counted-{key_of(LAYOUT, task.staged.name, task.rows, task.integers)}"
    if done(folder) is not None:
        advance(0, task.rows)
        return folder
    file = StagedFile(task.staged)
    parts = min(threads(), task.columns)
    limit = task.memory.divided(parts).merged_ids
    with step(folder) as (made, note), ThreadPoolExecutor(parts) as pool:

        def one(column: int) -> tuple[int, int]:
            runs: list[Run] = []
            missing, missing_first = 0, 0
            for block, inside in file.blocks_before(task.rows):
                leading = None
                lost, first = file.missing(column, block)
                if inside < file.block_rows[block]:
                    leading = file.ids(column, block).leading(file.codes(column, block)[:inside])
                    lost = leading.missing
                runs.append(_BlockRun(file, column, block, leading))
                if lost and not missing:
                    missing_first = file.start(block) + first
                missing += lost
            _write_runs(made, column, merged(runs, limit=limit))
            return missing, missing_first

        note["missing"] = []
        for position, lost in enumerate(pool.map(one, range(task.columns)), start=1):
            note["missing"].append(lost)
            advance(0, task.rows * position // task.columns)
        note["minimum"] = file.minimum(task.rows, task.integers)
    return folder


@dataclass(frozen=True)
class VocabularyTask:
    """Give the ids of one column their rows.

    Attributes:
        column: Its position among the categorical columns.
        name: Its name.
        counted: Counting folders of the files in time order.
        starts: Row of the dataset at which each file begins.
        training_rows: Rows of the training split.
        work: The work folder.
        memory: The bound on memory.
        min_count: Ids with fewer accesses go to row 0, when ids are ranked.
        hashed_rows: Rows of the table when ids are hashed, None when they are ranked.
        signed: Whether the values are integers in two's complement.
    """

    column: int
    name: str
    counted: tuple[Path, ...]
    starts: tuple[int, ...]
    training_rows: int
    work: Path
    memory: Memory
    min_count: int = 1
    hashed_rows: int | None = None
    signed: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """Rows of one table for the ids of the training split, on disk.

    Attributes:
        folder: Where they are.
        table_rows: Rows of the table.
        training_ids: Distinct ids in training, the missing one and rare ones included.
        values: How many ids have a row by value; 0 where rows follow from the value alone.
        missing_row: Row of the missing id.
        hashed: Whether rows are values modulo the size of the table.
        signed: Whether the values are integers in two's complement.
    """

    folder: Path
    table_rows: int
    training_ids: int
    values: int
    missing_row: int
    hashed: bool
    signed: bool

    def counts(self, limit: int) -> Iterator[npt.NDArray[np.int64]]:
        """Accesses of all rows, int64, some at a time."""
        for start in range(0, self.table_rows, limit):
            length = min(limit, self.table_rows - start)
            yield np.fromfile(self.folder / "counts", np.int64, length, offset=8 * start)

    def slices(self, limit: int) -> Iterator[VocabularySlice]:
        """The ids in order of their values, some at a time: together they answer for every possible value."""
        if self.hashed:
            yield VocabularySlice(None, None, modulus=self.table_rows, signed=self.signed)
            return
        previous: int | None = None
        for start in range(0, max(self.values, 1), limit):
            length = min(limit, self.values - start)
            values = np.fromfile(self.folder / "values", np.uint64, length, offset=8 * start)
            rows = np.fromfile(self.folder / "rows", np.int32, length, offset=4 * start)
            last = start + length >= self.values
            yield VocabularySlice(values, rows, above=previous, up_to=None if last else int(values[-1]))
            previous = int(values[-1]) if length else None


@dataclass(frozen=True)
class VocabularySlice:
    """Rows of the ids in a range of values.

    Attributes:
        values: uint64 `[ids]`, sorted; None where rows are values modulo `modulus`.
        rows: int32 `[ids]`.
        above, up_to: The range of values that this slice answers for; None where it is open.
        modulus: Rows of the table, when ids are hashed.
        signed: Whether values are to be taken as integers in two's complement.
    """

    values: npt.NDArray[np.uint64] | None
    rows: npt.NDArray[np.int32] | None
    above: int | None = None
    up_to: int | None = None
    modulus: int = 0
    signed: bool = False

    def span(self, values: npt.NDArray[np.uint64]) -> slice:
        """Which of some sorted values this slice answers for."""
        start = 0 if self.above is None else int(np.searchsorted(values, np.uint64(self.above), side="right"))
        stop = len(values) if self.up_to is None else int(np.searchsorted(values, np.uint64(self.up_to), side="right"))
        return slice(start, stop)

    def look_up(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Rows of sorted values of the range, int32 `[n]`; 0 for ids that the training split does not have."""
        if self.values is None or self.rows is None:
            return hashed(values, self.modulus, signed=self.signed).astype(np.int32)
        if not len(self.values):
            return np.zeros(len(values), np.int32)
        position = np.searchsorted(self.values, values)
        np.minimum(position, len(self.values) - 1, out=position)
        return np.where(self.values[position] == values, self.rows[position], np.int32(0))


def hashed(values: npt.NDArray[np.uint64], rows: int, *, signed: bool) -> npt.NDArray[np.int64]:
    """Values modulo the size of a table, as torchrec's `InMemoryBinaryCriteoIterDataPipe` does with its `hashes`."""
    if signed:
        return np.mod(values.view(np.int64), np.int64(rows))
    return np.mod(values, np.uint64(rows)).astype(np.int64)


def build_vocabulary(task: VocabularyTask, advance: Advance = unheard) -> Vocabulary:
    """Merge the counts of all files and give every id its row, unless an earlier run has.

    Ranked: rows 1, 2, ... in order of decreasing count, ties by first appearance; the missing id takes part; row 0 is
    for ids below `min_count` and for those that training lacks. Hashed: the value modulo the size of the table; a
    missing id counts as 0, as in torchrec.

    Raises:
        DataError: a table would have more rows than an int32 can tell apart.
    """
    facts = [[path.name for path in task.counted], task.starts, task.min_count, task.hashed_rows, task.signed]
    folder = task.work / f"vocabulary-{key_of(LAYOUT, task.column, *facts)}"
    note = done(folder)
    if note is None:
        with step(folder) as (made, note):
            _build(task, made, note)
    advance(0, task.training_rows)
    return Vocabulary(folder=folder, hashed=task.hashed_rows is not None, signed=task.signed, **note)


def _build(task: VocabularyTask, made: Path, note: dict[str, object]) -> None:
    runs = [_FileRun(path, task.column, start) for path, start in zip(task.counted, task.starts, strict=True)]
    missing, missing_first = 0, 0
    for path, start in zip(task.counted, task.starts, strict=True):
        lost, first = (done(path) or {})["missing"][task.column]
        if lost and not missing:
            missing_first = start + first
        missing += lost
    lists = merged(runs, limit=task.memory.merged_ids)
    if task.hashed_rows is not None:
        ids = _count_hashed(task, lists, made, missing=missing)
        rows, values, missing_row = task.hashed_rows, 0, 0
    else:
        ids = _write_runs(made, 0, lists)
        if missing:  # takes part in the ranking like any other, as the last entry
            for part, number in (("counts", missing), ("first", missing_first)):
                with _path(made, 0, part).open("ab") as stream:
                    stream.write(np.int64(number).tobytes())
        rows = _rank(made, ids + bool(missing), task=task)
        if rows > MOST_ROWS:
            raise DataError(f"column {task.name} has {rows:,} ids: raise --min-count, or hash them (--ids hashed)")
        values = ids
        missing_row = int(np.fromfile(made / "rows", np.int32, 1, offset=4 * ids)[0]) if missing else 0
        for part in ("counts", "first"):
            _path(made, 0, part).unlink()
        _path(made, 0, "values").rename(made / "values")
    note |= {"table_rows": rows, "training_ids": ids + bool(missing), "values": values, "missing_row": missing_row}


def _rank(folder: Path, entries: int, *, task: VocabularyTask) -> int:
    """Write `rows` int32 `[entries]` and `counts` int64 `[table rows]` from the counts and first rows of the entries.

    Entries fall into cells by their count and first row, in the order of the ranking. As no two ids of a column have
    the same first row, a cell with one count has at most as many ids as rows; cells are taken together up to the limit.

    Returns:
        Rows of the table.
    """
    limit = task.memory.ranked_ids
    width = max(1, -(-task.training_rows // _ROW_CELLS))

    def chunks() -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        for start in range(0, entries, limit):
            length = min(limit, entries - start)
            counts, first = (
                np.fromfile(_path(folder, 0, part), np.int64, length, offset=8 * start) for part in ("counts", "first")
            )
            often = np.maximum(_COUNT_CELLS - counts, 0)
            cells = np.where(often > 0, often * _ROW_CELLS + first // width, 0)
            yield start, counts, first, np.where(counts >= task.min_count, cells, -1)

    sizes = np.zeros((_COUNT_CELLS + 1) * _ROW_CELLS, np.int64)
    rare = task.training_rows
    for _, counts, _, cells in chunks():
        kept = cells >= 0
        found = np.bincount(cells[kept])
        sizes[: len(found)] += found
        rare -= int(counts[kept].sum())
    with (folder / "rows").open("wb") as stream:
        stream.truncate(4 * entries)
    row = 1
    with (folder / "counts").open("wb") as counts_file, (folder / "rows").open("r+b") as rows_file:
        counts_file.write(np.int64(rare).tobytes())
        for low, high in _ranges(sizes, limit):
            picked = [
                (np.flatnonzero(inside) + start, counts[inside], first[inside])
                for start, counts, first, cells in chunks()
                for inside in [(cells >= low) & (cells < high)]
            ]
            places, counts, first = (np.concatenate(parts) for parts in zip(*picked, strict=True))
            order = np.lexsort((first, -counts))
            counts_file.write(counts[order].data)
            rows = np.empty(len(order), np.int32)
            rows[order] = np.arange(row, row + len(order)).astype(np.int32)
            row += len(order)
            _scatter(rows_file, places, rows, window=limit, entries=entries)
    return row


def _ranges(sizes: npt.NDArray[np.int64], limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive cells that hold together at most the limit, or a single one that holds more."""
    used = np.flatnonzero(sizes)
    totals = np.cumsum(sizes[used])
    start, before = 0, 0
    while start < len(used):
        stop = max(start + 1, int(np.searchsorted(totals, before + limit, side="right")))
        yield int(used[start]), int(used[stop - 1]) + 1
        start, before = stop, int(totals[stop - 1])


def _scatter(
    stream: BinaryIO, places: npt.NDArray[np.int64], rows: npt.NDArray[np.int32], *, window: int, entries: int
) -> None:
    """Write rows at ascending places of a file, a window of it at a time."""
    for start in range(0, entries, window):
        begin, end = np.searchsorted(places, (start, start + window))
        if begin == end:
            continue
        length = min(window, entries - start)
        stream.seek(4 * start)
        part = np.frombuffer(bytearray(stream.read(4 * length)), np.int32)
        part[places[begin:end] - start] = rows[begin:end]
        stream.seek(4 * start)
        stream.write(part.data)


def _count_hashed(task: VocabularyTask, lists: Iterator[Counted], folder: Path, *, missing: int) -> int:
    """Write the accesses of every row of a table of hashed ids; returns the distinct ids."""
    table_rows = task.hashed_rows or 0
    window = min(table_rows, task.memory.ranked_ids)
    ids = 0
    with (folder / "rows_and_counts").open("wb+") as spill:
        for part in lists:
            ids += len(part.values)
            rows = hashed(part.values, table_rows, signed=task.signed)
            spill.write(np.stack([rows, part.counts], axis=1).data)
        with (folder / "counts").open("wb") as stream:
            for start in range(0, table_rows, window):
                counts = np.zeros(min(window, table_rows - start), np.int64)
                spill.seek(0)
                while data := spill.read(16 * task.memory.ranked_ids):
                    pairs = np.frombuffer(data, np.int64).reshape(-1, 2)
                    inside = (pairs[:, 0] >= start) & (pairs[:, 0] < start + len(counts))
                    np.add.at(counts, pairs[inside, 0] - start, pairs[inside, 1])
                counts[0] += missing if start == 0 else 0
                stream.write(counts.data)
    (folder / "rows_and_counts").unlink()
    return ids


def _write_runs(folder: Path, column: int, lists: Iterator[Counted]) -> int:
    """Write lists one after the other; returns the ids."""
    ids = 0
    paths = [_path(folder, column, part) for part in Counted._fields]
    with paths[0].open("wb") as values, paths[1].open("wb") as counts, paths[2].open("wb") as first:
        for part in lists:
            for stream, array in zip((values, counts, first), part, strict=True):
                stream.write(np.ascontiguousarray(array).data)
            ids += len(part.values)
    return ids


def _path(folder: Path, column: int, part: str) -> Path:
    return folder / f"{column:03}_{part}"
