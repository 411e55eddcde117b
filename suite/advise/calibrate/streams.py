"""Streams that costs are calibrated on: no dataset's, with few and with many distinct rows for as many ids."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig
from torchrec.types import DataType

from suite.advise.case import RowType
from suite.advise.shape import Shape
from suite.run.cell.training import tables_of
from workloads.batch import Batch
from workloads.streams.zipf import RankLaw, RankSampler, RankScrambler

_MOST_ROWS_BYTES = 1 << 29
"""Of the tables of a calibration: larger ones cost the same per row, which comes from memory either way."""
_EXPECTED_BATCHES = 1000
_LEAST_ROWS = 8.0
"""Of the smallest table."""
_HALVINGS = 60
_CLICKS = 0.3


@dataclass(frozen=True)
class Stream:
    """A law of ids: `skew` is the exponent of a power law over the ranks of a table, 0 being uniform.

    A batch has a `share` of the shape's samples.
    """

    name: str
    skew: float
    share: float = 1.0

    def law(self, rows: int) -> RankLaw:
        """The power law over ranks 1 to `rows`; rank 0 is never drawn."""
        return RankLaw(rows=rows + 1, head=(0.0,), exponent=self.skew, shift=0.0)


STREAMS = (
    Stream("uniform", 0.0),
    Stream("power law 0.9", 0.9),
    Stream("power law 1.3", 1.3),
    Stream("uniform, a quarter of the batch", 0.0, 0.25),
)


class CalibrationTables:
    """Tables of rising sizes, together as large as a shape's, and batches over them.

    Click logs have a few large tables and many small ones, and kernels go through small tables faster: so every table
    is larger than the one before by the same factor, from a few rows on.
    """

    def __init__(self, shape: Shape) -> None:
        most = _MOST_ROWS_BYTES // (4 * shape.embedding_dim)
        self.shape = shape
        self.rows = geometric_sizes(min(shape.rows, most), tables=shape.tables)
        self._scrambler = RankScrambler(self.rows, generator=np.random.Philox(0))
        self.tables = tuple((f"table_{index}", rows) for index, rows in enumerate(self.rows))

    def configs(self, row_type: RowType = RowType.FP32) -> tuple[EmbeddingBagConfig, ...]:
        """The tables as torchrec describes them."""
        return tables_of(self.tables, self.shape.embedding_dim, row_type=DataType[row_type.name])

    def batch(self, stream: Stream, generator: np.random.Generator) -> Batch:
        """A fresh batch."""
        samples, tables = max(1, int(self.shape.batch_size * stream.share)), self.shape.tables
        uniform = generator.random((tables, samples * self.shape.hotness))
        ranks = RankSampler([stream.law(rows) for rows in self.rows]).ranks(uniform) - 1
        return Batch.of(
            keys=[name for name, _ in self.tables],
            ids=self._scrambler.ids(ranks).reshape(-1),
            lengths=np.full((tables, samples), self.shape.hotness),
            dense=generator.random((samples, self.shape.dense_columns), dtype=np.float32),
            labels=(generator.random(samples) < _CLICKS).astype(np.float32),
        )

    def frequencies(self) -> Mapping[str, Tensor]:
        """Accesses per row that a policy may know beforehand: those of the steepest stream, int64 `[rows]` by table."""
        steepest = max(STREAMS, key=lambda stream: stream.skew)
        found = {}
        for table, (name, rows) in enumerate(self.tables):
            expected = steepest.law(rows).probabilities(1, rows + 1) * self.shape.batch_size * _EXPECTED_BATCHES
            accesses = np.empty(rows, np.int64)
            accesses[self._scrambler.table_ids(table, np.arange(rows))] = np.rint(expected).astype(np.int64)
            found[name] = torch.from_numpy(accesses)
        return found


def geometric_sizes(rows: int, *, tables: int) -> tuple[int, ...]:
    """Sizes of tables that together have about so many rows, each larger than the last by one factor."""
    low, high = 1.0, float(max(rows, 2))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        total = sum(_LEAST_ROWS * middle**table for table in range(tables))
        low, high = (middle, high) if total < rows else (low, middle)
    return tuple(max(1, int(min(_LEAST_ROWS, rows / tables) * low**table)) for table in range(tables))
