"""Counted ids of one column to rows by rank, range of counts by range of counts, as many at a time as memory allows."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from workloads.prepare.merging import column_file

_COUNT_CELLS = 1024
_ROW_CELLS = 1024


def rank(folder: Path, entries: int, *, training_rows: int, min_count: int, limit: int) -> int:
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
