"""Streams that costs are calibrated on: no dataset's, with few and with many distinct rows for as many ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.types import DataType

from suite.advise.shape import Shape
from workloads.batch import Batch

_MOST_ROWS_BYTES = 1 << 29
"""Of the tables of a calibration: larger ones cost the same per row, which comes from memory either way."""
_STRIDE = 0.618034
_EXPECTED_BATCHES = 1000
_LEAST_ROWS = 8.0
"""Of the smallest table."""
_HALVINGS = 60
_CLICKS = 0.3


@dataclass(frozen=True)
class Stream:
    """A law of ids.

    Attributes:
        name: For people.
        skew: Exponent of a power law over the ranks of a table; 0: uniform.
        share: Samples per batch, as a share of the shape's.
    """

    name: str
    skew: float
    share: float


STREAMS = (
    Stream("uniform", 0.0, 1.0),
    Stream("power law 0.9", 0.9, 1.0),
    Stream("power law 1.3", 1.3, 1.0),
    Stream("uniform, a quarter of the batch", 0.0, 0.25),
)


class CalibrationTables:
    """Tables of rising sizes, together as large as a shape's, and batches over them.

    Click logs have a few large tables and many small ones, and kernels go through small tables faster: so every table
    is larger than the one before by the same factor, from a few rows on.
    """

    def __init__(self, shape: Shape, *, row_type: DataType = DataType.FP32) -> None:
        most = _MOST_ROWS_BYTES // (4 * shape.embedding_dim)
        self.shape = shape
        self.rows = geometric_sizes(min(shape.rows, most), tables=shape.tables)
        self._names = [f"table_{index}" for index in range(shape.tables)]
        self.tables = tuple(
            EmbeddingBagConfig(
                name=name,
                embedding_dim=shape.embedding_dim,
                num_embeddings=rows,
                feature_names=[name],
                pooling=PoolingType.SUM,
                data_type=row_type,
            )
            for name, rows in zip(self._names, self.rows, strict=True)
        )

    def batch(self, stream: Stream, generator: np.random.Generator) -> Batch:
        """A fresh batch."""
        samples = max(1, int(self.shape.batch_size * stream.share))
        hotness = self.shape.hotness
        drawn = [
            scattered(power_law_ranks(generator.random(samples * hotness), skew=stream.skew, rows=rows), rows=rows)
            for rows in self.rows
        ]
        ids = np.concatenate(drawn)
        bags = self.shape.tables * samples
        features = KeyedJaggedTensor(
            keys=self._names,
            values=torch.from_numpy(ids),
            lengths=torch.full((bags,), hotness, dtype=torch.int64),
            offsets=torch.arange(bags + 1, dtype=torch.int64) * hotness,
            stride=samples,
        )
        dense = generator.random((samples, self.shape.dense_columns), dtype=np.float32)
        labels = (generator.random(samples) < _CLICKS).astype(np.float32)
        return Batch(dense=torch.from_numpy(dense), features=features, labels=torch.from_numpy(labels))

    def frequencies(self) -> Mapping[str, Tensor]:
        """Accesses per row that a policy may know beforehand: those of the steepest stream, int64 `[rows]` by table."""
        skew = max(stream.skew for stream in STREAMS)
        found = {}
        for name, rows in zip(self._names, self.rows, strict=True):
            mass = np.diff(_power_sum(np.arange(rows + 1, dtype=np.float64), skew))
            expected = mass / mass.sum() * self.shape.batch_size * _EXPECTED_BATCHES
            accesses = np.empty(rows, np.int64)
            accesses[scattered(np.arange(rows), rows=rows)] = np.rint(expected).astype(np.int64)
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


def scattered(ranks: NDArray[np.int64], *, rows: int) -> NDArray[np.int64]:
    """Row ids of ranks: a bijection, so that hot rows are no neighbours."""
    step = max(1, int(rows * _STRIDE))
    while gcd(step, rows) > 1:
        step += 1
    ids: NDArray[np.int64] = ranks * step % rows
    return ids


def power_law_ranks(uniform: NDArray[np.float64], *, skew: float, rows: int) -> NDArray[np.int64]:
    """Ranks below `rows`, likelier the lower they are: the continuous power law, inverted and rounded down.

    Args:
        uniform: Values in [0, 1).
        skew: The exponent, at least 0.
        rows: Of the table.
    """
    whole = float(_power_sum(np.array([rows], np.float64), skew)[0])
    mass = uniform * whole
    ranks = np.expm1(mass) if skew == 1.0 else (mass * (1 - skew) + 1) ** (1 / (1 - skew)) - 1
    clipped: NDArray[np.int64] = np.minimum(ranks.astype(np.int64), rows - 1)
    return clipped


def _power_sum(ranks: NDArray[np.float64], skew: float) -> NDArray[np.float64]:
    """The integral of `(1 + x) ** -skew` from 0 to each rank."""
    if skew == 1.0:
        return np.log1p(ranks)
    integral: NDArray[np.float64] = ((1 + ranks) ** (1 - skew) - 1) / (1 - skew)
    return integral
