"""Traces in Parquet: one integer column per table."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import cast

import numpy as np
import polars as pl

from suite.simulate.traces import sources
from suite.simulate.traces.sources import Integers, Source, unreadable
from suite.simulate.traces.trace import Int64s
from workloads.errors import DataError


class Parquet(Source):
    """One integer column per table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._decoded: OrderedDict[int, pl.DataFrame] = OrderedDict()
        try:
            self._frame = pl.scan_parquet(path)
            schema = self._frame.collect_schema()
            self.samples = int(self._frame.select(pl.len()).collect().item())
        except (OSError, pl.exceptions.PolarsError) as error:
            raise unreadable(path, error) from error
        wrong = [f"{name} ({kind})" for name, kind in schema.items() if not kind.is_integer()]
        if wrong:
            raise DataError(f"{path}: not integers: column {', '.join(wrong)}: ids are whole numbers, drop what is not")
        if not len(schema):
            raise DataError(f"{path} has no columns: give one of integers per table")
        self.names = tuple(schema.names())

    @property
    def block(self) -> int:
        return sources.BLOCK_SAMPLES

    def read(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        blocks = range(start // self.block, -(-stop // self.block))
        frame = pl.concat([self._part(block, start, stop) for block in blocks])
        values = np.concatenate([self._values(column, start) for column in frame.iter_columns()], dtype=np.int64)
        return values, np.arange(1, len(self.names) + 1, dtype=np.int64) * (stop - start)

    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        return start + at

    def most_ids(self, samples: int) -> int:
        return samples * len(self.names)

    def place(self, table: int) -> str:
        return f"column '{self.names[table]}'"

    def _part(self, block: int, start: int, stop: int) -> pl.DataFrame:
        """What of a decoded block lies between two samples."""
        with self._lock:
            if block not in self._decoded:
                try:
                    self._decoded[block] = self._frame.slice(block * self.block, self.block).collect()
                except (OSError, pl.exceptions.PolarsError) as error:
                    raise unreadable(self.path, error) from error
            self._decoded.move_to_end(block)
            while len(self._decoded) > 2:
                self._decoded.popitem(last=False)
            frame = self._decoded[block]
        begin = block * self.block
        first = max(start, begin)
        return frame.slice(first - begin, min(stop, begin + self.block) - first)

    def _values(self, column: pl.Series, start: int) -> Integers:
        if column.null_count():
            row = start + cast(int, column.is_null().arg_max())
            raise DataError(
                f"{self.path}, column '{column.name}', row {row}: the id is missing: give missing values an id"
            )
        return column.to_numpy()
