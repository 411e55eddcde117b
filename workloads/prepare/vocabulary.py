"""The third step: the counted ids of all files to the rows of a table, on disk, by rank or hashed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from workloads import DataError
from workloads.manifest import IdRule, Settings
from workloads.prepare.cluster import Advance
from workloads.prepare.formats import Kind, RawColumn
from workloads.prepare.merging import CountedIds, SortedIds, Stored, column_file, merged, write_run
from workloads.prepare.workspace import Finished, Job, key_of, step

LAYOUT = 1  # of a vocabulary folder
MOST_ROWS = 2**31 - 1  # ids are int32
_COUNT_CELLS = 1024
_ROW_CELLS = 1024


@dataclass(frozen=True)
class Vocabulary:
    """Rows of one table for the ids of the training split, on disk.

    Attributes:
        training_ids: Distinct ids in training, the missing one and rare ones included.
        values: How many ids have a row by value; 0 where rows follow from the value alone.
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
        known, row_of = (
            Stored(self.folder / name, dtype, self.values) for name, dtype in (("values", "Q"), ("rows", "i"))
        )
        for start in range(0, max(self.values, 1), limit):
            stop = min(start + limit, self.values)
            values, rows = known.read(start, stop), row_of.read(start, stop)
            for number, run in enumerate(runs):
                wanted = run.values.mapped()[found[number] :]
                wanted = wanted if stop == self.values else wanted[: np.searchsorted(wanted, values[-1], side="right")]
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
    if signed:
        return np.mod(values.view(np.int64), np.int64(rows))
    return np.mod(values, np.uint64(rows)).astype(np.int64)


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
    job: Job, counted: Sequence[tuple[Finished, int]], training_rows: int, column: int, advance: Advance
) -> Vocabulary:
    """Merge the counts of all files and give every id of one column its row, unless an earlier run has.

    `counted` is what `count` made of the files, in time order, each with the row at which the file begins.

    Raises:
        DataError: a table would have more rows than an int32 can tell apart.
    """
    described = job.raw.categorical[column]
    signed, table_rows = described.kind is Kind.CATEGORICAL_INTEGER, hashed_rows(described, job.settings)
    lost = [(file.note["missing"][column], start) for file, start in counted]
    missing = sum(rows for (rows, _), _ in lost)
    missing_first = next((start + first for (rows, first), start in lost if rows), 0)

    def fill(made: Path) -> dict[str, Any]:
        runs = [SortedIds.whole(file.folder, column, start=start) for file, start in counted]
        lists = merged(runs, limit=job.memory.merged_ids)
        if table_rows is None:
            return _ranked(
                job, lists, made, missing=(missing, missing_first), training_rows=training_rows, column=described
            )
        ids = _count_hashed(lists, made, rows=table_rows, limit=job.memory.ranked_ids, signed=signed, missing=missing)
        return {"table_rows": table_rows, "training_ids": ids + bool(missing), "values": 0, "missing_row": 0}

    files = [[file.folder.name, start] for file, start in counted]
    key = key_of(LAYOUT, column, files, job.settings.min_count, table_rows, signed)
    folder, note = step(job.work / f"vocabulary-{key}", fill)
    advance(training_rows)
    return Vocabulary(folder=folder, hashed=table_rows is not None, signed=signed, **note)


def _ranked(
    job: Job,
    lists: Iterator[CountedIds],
    made: Path,
    *,
    missing: tuple[int, int],
    training_rows: int,
    column: RawColumn,
) -> dict[str, int]:
    """Rank the ids of a column; returns what `Vocabulary` has to know.

    `missing` has the rows without an id, and the first of them: a missing id is ranked like others, as the last entry.
    """
    ids = write_run(made, 0, lists)
    entries = ids + bool(missing[0])
    if missing[0]:
        for part, number in zip(("counts", "first"), missing, strict=True):
            with column_file(made, 0, part).open("ab") as stream:
                stream.write(np.int64(number).tobytes())
    limit, min_count = job.memory.ranked_ids, job.settings.min_count
    rows = _rank(made, entries, training_rows=training_rows, min_count=min_count, limit=limit)
    if rows > MOST_ROWS:
        raise DataError(f"column {column.name} has {rows:,} ids: raise --min-count, or hash them (--ids hashed)")
    missing_row = int(np.fromfile(made / "rows", np.int32, 1, offset=4 * ids)[0]) if missing[0] else 0
    for part in ("counts", "first"):
        column_file(made, 0, part).unlink()
    column_file(made, 0, "values").rename(made / "values")
    return {"table_rows": rows, "training_ids": entries, "values": ids, "missing_row": missing_row}


def _rank(folder: Path, entries: int, *, training_rows: int, min_count: int, limit: int) -> int:
    """Write `rows` int32 `[entries]` and `counts` int64 `[table rows]` from the counts and first rows of the entries.

    Rows 1, 2, ... go to the entries in order of decreasing count, ties by first row; row 0 to those below `min_count`.
    Entries fall into cells by their count and first row, in the order of the ranking. As no two ids of a column have
    the same first row, a cell with one count has at most as many ids as rows; cells are taken together up to the limit.

    The folder holds the files of column 0, and gets the two written. So many entries as `limit` are ranked at a time.
    Returns the rows of the table.
    """
    width = max(1, -(-training_rows // _ROW_CELLS))

    def chunks() -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        for start in range(0, entries, limit):
            length = min(limit, entries - start)
            paths = (column_file(folder, 0, part) for part in ("counts", "first"))
            counts, first = (np.fromfile(path, np.int64, length, offset=8 * start) for path in paths)
            often = np.maximum(_COUNT_CELLS - counts, 0)
            cells = np.where(often > 0, often * _ROW_CELLS + first // width, 0)
            yield start, counts, first, np.where(counts >= min_count, cells, -1)

    sizes = np.zeros((_COUNT_CELLS + 1) * _ROW_CELLS, np.int64)
    rare = training_rows
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


def _count_hashed(
    lists: Iterator[CountedIds], folder: Path, *, rows: int, limit: int, signed: bool, missing: int
) -> int:
    """Write the accesses of every row of a table of hashed ids; returns the distinct ids."""
    window = min(rows, limit)
    ids = 0
    with (folder / "rows_and_counts").open("wb+") as spill:
        for part in lists:
            ids += len(part.values)
            spill.write(np.stack([hashed(part.values, rows, signed=signed), part.counts], axis=1).data)
        with (folder / "counts").open("wb") as stream:
            for start in range(0, rows, window):
                counts = np.zeros(min(window, rows - start), np.int64)
                spill.seek(0)
                while data := spill.read(16 * limit):
                    pairs = np.frombuffer(data, np.int64).reshape(-1, 2)
                    inside = (pairs[:, 0] >= start) & (pairs[:, 0] < start + len(counts))
                    np.add.at(counts, pairs[inside, 0] - start, pairs[inside, 1])
                counts[0] += missing if start == 0 else 0
                stream.write(counts.data)
    (folder / "rows_and_counts").unlink()
    return ids
