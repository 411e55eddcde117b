"""Id streams of one's own, from a file.

Samples are in time order. What a file may hold:

- `.npy`: integers `[samples, tables]`, one id per sample and table.
- `.npz`: `ids` as above; or, for bags, `ids` `[n]` with `offsets` `[samples * tables + 1]`, where the bags of a sample
  follow one another, table by table. Optional: `rows` `[tables]`, and `names` `[tables]`; bags need one of them, for
  nothing else says how many tables there are.

Without `rows` a table ends at its largest id, and opening a file reads all of it once, in blocks. A `.npy` is mapped
into memory, a `.npz` is read into it. Messages count rows from 0, a row being a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from suite.simulate.traces.samples import Samples
from suite.simulate.traces.trace import Int64s, Trace
from systems.freq_cache.planner.planner import Ids
from workloads.errors import DataError
from workloads.frequency import add_accesses
from workloads.split import prefix_of

_MOST_ROWS = 2**31 - 1


class FileTrace(Trace):
    """A stream from a file; see the module for what it may hold.

    Args:
        path: `.npy` or `.npz`.
        batch_size: Samples per batch; those behind the last full batch are left out.
        prefix: Share of the samples, from the first one on, that `frequencies` counts.

    Raises:
        DataError: the file cannot be read or is no trace; the message names the place and the remedy.
    """

    def __init__(self, path: Path, batch_size: int, prefix: float = 1.0) -> None:
        self._samples = samples = Samples.open(path)
        if not samples.count:
            raise DataError(f"{path} holds no samples: give a trace of at least one batch")
        if samples.count < batch_size:
            raise DataError(
                f"{path} holds {samples.count:,} samples, a batch has {batch_size:,}: "
                f"give --batch-size of at most {samples.count}"
            )
        self._batch_size = batch_size
        self._prefix = prefix
        sizes = samples.rows or _sizes(samples)
        if sum(sizes) > _MOST_ROWS:
            raise DataError(
                f"{path}: the tables have {sum(sizes):,} rows together, the simulator numbers fewer than 2^31: "
                "map the ids to 0, 1, 2, ... first"
            )
        self.name = path.name
        self.tables = tuple(zip(samples.names, sizes, strict=True))
        self.length = samples.count // batch_size
        self.batch_lookups = samples.most_ids(batch_size)

    def ids(self, index: int) -> Ids:
        if not 0 <= index < self.length:
            raise IndexError(f"{self.name}: there is no batch {index}, only {self.length}")
        return self.run(index, index + 1)

    def run(self, start: int, stop: int) -> Ids:
        block = _Block(start * self._batch_size, stop * self._batch_size, self._batch_size)
        return Ids(*_read(self._samples, block, [rows for _, rows in self.tables]), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        counts = [np.zeros(rows, np.int64) for _, rows in self.tables]
        sizes = [rows for _, rows in self.tables]
        for start, stop in self._samples.blocks(prefix_of(self._samples.count, self._prefix)):
            values, ends = _read(self._samples, _Block(start, stop, stop - start), sizes)
            for ids, into in zip(np.split(values, ends[:-1]), counts, strict=True):
                add_accesses(ids, into)
        return counts


def _sizes(samples: Samples) -> list[int]:
    """Rows of every table: up to the largest id."""
    largest = np.zeros(len(samples.names), np.int64)
    for start, stop in samples.blocks(samples.count):
        values, ends = _read(samples, _Block(start, stop, stop - start), [_MOST_ROWS] * largest.size)
        for table, ids in enumerate(np.split(values, ends[:-1])):
            largest[table] = max(largest[table], int(ids.max(initial=0)))
    return [int(most) + 1 for most in largest]


class _Block(NamedTuple):
    """Samples `start` to `stop`, in batches of so many."""

    start: int
    stop: int
    batch: int


def _read(samples: Samples, block: _Block, sizes: Sequence[int]) -> tuple[Int64s, Int64s]:
    """What `Samples.read` gives. Raises `DataError` for an id outside its table, whose rows are `sizes`."""
    values, ends = samples.read(*block)
    limits = np.tile(np.array(sizes, np.int64), ends.size // len(sizes)).repeat(np.diff(ends, prepend=0))
    bad = np.flatnonzero((values < 0) | (values >= limits))
    if not bad.size:
        return values, ends
    at = int(bad[0])
    part = int(np.searchsorted(ends, at, side="right"))
    batch, table = divmod(part, len(sizes))
    start = block.start + batch * block.batch
    sample = samples.sample_of(start, start + block.batch, table, at - int(ends[part - 1] if part else 0))
    where = f"{samples.path}, {samples.place(table)}, row {sample}"
    if values[at] < 0:
        raise DataError(f"{where}: id {values[at]} is negative: ids count from 0, give missing values an id of theirs")
    if sizes[table] == _MOST_ROWS:
        raise DataError(f"{where}: id {values[at]} does not fit 2^31 rows: map the ids to 0, 1, 2, ... first")
    raise DataError(f"{where}: id {values[at]} is outside the table's {sizes[table]:,} rows: give it more rows")
