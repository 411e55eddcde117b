"""Synthetic click logs: the table sizes, access skew and click rate of a real dataset, with labels to learn."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workloads.batch import Batch, DataKind, Split
from workloads.bijection import RankScrambler
from workloads.planted import PlantedModel
from workloads.profiles import load_profile
from workloads.schema import SCHEMAS, DatasetSchema
from workloads.zipf import RankSampler

BEST_AUROC: Mapping[str, float] = {"criteo_kaggle": 0.80, "avazu": 0.76, "criteo_1tb": 0.80}
"""AUROC that the planted model of a dataset reaches on its own stream."""

_STREAMS = {Split.TRAIN: 0, Split.VALIDATION: 1, Split.TEST: 2}
_CALIBRATION, _BIJECTIONS, _PLANTED = 3, 4, 5
_CALIBRATION_ROWS = 1 << 16
_FREQUENCY_CHUNK = 1 << 16


@dataclass(frozen=True)
class _Samples:
    """One draw: ranks int64 `[tables, n]`, dense fp32 `[dense columns, n]`, label thresholds float64 `[n]`."""

    ranks: npt.NDArray[np.int64]
    dense: npt.NDArray[np.float32]
    thresholds: npt.NDArray[np.float64]


class SyntheticWorkload:
    """A synthetic stream shaped like one of the datasets. Implements `Workload`.

    Per table, ranks follow a bounded Zipf law with the measured heavy hitters, missing values strike the measured
    groups of columns together, and a bijection scatters ranks over row ids. Other dependence between columns is left
    out. Every batch has a counter range of its own (Philox): the same in any process, and unlike any other batch.

    Args:
        schema: The dataset to imitate.
        rows: Rows by table, in the order of the schema.
        batch_size: Samples per batch.
        seed: Of the stream, the bijections and the planted model, 0 to 2**64 - 1.

    Raises:
        ValueError: the batch size or the seed is out of range.
    """

    def __init__(self, *, schema: DatasetSchema, rows: Mapping[str, int], batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give at least 1 sample per batch")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed is {seed}: give a number from 0 to 2**64 - 1")
        self._schema = schema
        self._rows = dict(rows)
        self._batch_size = batch_size
        self._seed = seed
        self._keys = list(self._rows)
        self._profile = load_profile(schema.name, rows=self._rows)
        self._sampler = RankSampler([table.law for table in self._profile.tables.values()])
        self._scrambler = RankScrambler(list(self._rows.values()), generator=self._generator(_BIJECTIONS, 0))
        calibration = self._draw(_CALIBRATION, 0, _CALIBRATION_ROWS)
        self._planted = PlantedModel.calibrated(
            ranks=calibration.ranks,
            dense=calibration.dense,
            generator=self._generator(_PLANTED, 0),
            ctr=schema.ctr,
            auroc=BEST_AUROC[schema.name],
        )

    @classmethod
    def create(cls, dataset: str, *, batch_size: int, seed: int, max_rows: int | None = None) -> SyntheticWorkload:
        """A stream at the published table sizes, or at smaller ones.

        Args:
            dataset: Name of a schema.
            batch_size: Samples per batch.
            seed: Equal seeds give equal streams.
            max_rows: Rows that all tables may hold together; one common cap, small tables keep their size.

        Raises:
            ValueError: the dataset is unknown or a number is out of range.
        """
        if dataset not in SCHEMAS:
            raise ValueError(f"unknown dataset {dataset!r}: choose one of {', '.join(SCHEMAS)}")
        schema = SCHEMAS[dataset]
        sizes = [rows for _, rows in schema.categorical]
        cap = max(sizes) if max_rows is None else _common_cap(sizes, max_rows=max_rows)
        rows = {name: min(count, cap) for name, count in schema.categorical}
        return cls(schema=schema, rows=rows, batch_size=batch_size, seed=seed)

    @property
    def name(self) -> str:
        """The workload's name on the command line."""
        return self._schema.name

    @property
    def kind(self) -> DataKind:
        """Synthetic."""
        return DataKind.SYNTHETIC

    @property
    def batch_size(self) -> int:
        """Samples per batch."""
        return self._batch_size

    @property
    def tables(self) -> tuple[tuple[str, int], ...]:
        """Table names with their rows."""
        return tuple(self._rows.items())

    @property
    def dense_columns(self) -> int:
        """Dense features per sample."""
        return len(self._schema.dense)

    @property
    def best_auroc(self) -> float:
        """AUROC of the planted model on its own stream."""
        return self._planted.best_auroc

    def epoch_rows(self) -> int:
        """Samples of the published training split."""
        return self._schema.train_rows

    def batches(self, split: Split) -> int:
        """Full batches of the published split."""
        rows = {
            Split.TRAIN: self._schema.train_rows,
            Split.VALIDATION: self._schema.validation_rows,
            Split.TEST: self._schema.test_rows,
        }
        return rows[split] // self._batch_size

    def batch(self, index: int, split: Split = Split.TRAIN) -> Batch:
        """Batch `index` of a split, at the same cost for every index.

        Raises:
            IndexError: the split has no batch of that index.
        """
        samples = self._samples(index, split)
        labels = samples.thresholds < self._planted.probabilities(samples.ranks, samples.dense)
        return Batch.one_hot(
            keys=self._keys,
            ids=self._scrambler.ids(samples.ranks),
            dense=np.ascontiguousarray(samples.dense.T),
            labels=labels.astype(np.float32),
        )

    def probabilities(self, index: int, split: Split = Split.TRAIN) -> Tensor:
        """True click probabilities of a batch, float64 `[batch]`: what no model can beat.

        Raises:
            IndexError: the split has no batch of that index.
        """
        samples = self._samples(index, split)
        return torch.from_numpy(self._planted.probabilities(samples.ranks, samples.dense))

    def frequencies(self) -> Mapping[str, Tensor]:
        """Expected accesses per row over the training split, rounded, int64 `[rows]` by table.

        Worked out from the law, nothing is drawn. Beside the result it takes a few chunks of 2**16 ranks.
        """
        frequencies: dict[str, Tensor] = {}
        for number, (name, table) in enumerate(self._profile.tables.items()):
            rows = self._rows[name]
            accesses = np.empty(rows, dtype=np.int64)
            for start in range(0, rows, _FREQUENCY_CHUNK):
                stop = min(rows, start + _FREQUENCY_CHUNK)
                shares = table.law.probabilities(start, stop) * (1.0 - table.forced)
                if start == 0:
                    shares[0] += table.forced
                ids = self._scrambler.table_ids(number, np.arange(start, stop, dtype=np.int64))
                accesses[ids] = np.rint(shares * self._schema.train_rows).astype(np.int64)
            frequencies[name] = torch.from_numpy(accesses)
        return frequencies

    def shrunk(self, *, max_table_rows: int, batch_size: int) -> SyntheticWorkload:
        """A small copy for verification: the same heavy hitters on tables of `max_table_rows` rows at most.

        Raises:
            ValueError: a number is below 1.
        """
        if max_table_rows < 1:
            raise ValueError(f"max_table_rows is {max_table_rows}: give at least 1 row per table")
        rows = {name: min(count, max_table_rows) for name, count in self._rows.items()}
        return SyntheticWorkload(schema=self._schema, rows=rows, batch_size=batch_size, seed=self._seed)

    def _samples(self, index: int, split: Split) -> _Samples:
        count = self.batches(split)
        if not 0 <= index < count:
            raise IndexError(
                f"batch {index} of the {split} split of {self.name}: "
                f"there are {count} batches of {self._batch_size} samples, counted from 0"
            )
        return self._draw(_STREAMS[split], index, self._batch_size)

    def _generator(self, stream: int, index: int) -> np.random.Philox:
        """A generator whose counter range no other stream, index or dataset shares."""
        size = self._batch_size if stream < _CALIBRATION else 0
        # Typed words: numpy would take a list with a seed above 2**63 by way of floats.
        return np.random.Philox(
            key=np.array([self._seed, zlib.crc32(self._schema.name.encode())], dtype=np.uint64),
            # The lowest word counts a batch's own draws.
            counter=np.array([0, size, index, stream], dtype=np.uint64),
        )

    def _draw(self, stream: int, index: int, size: int) -> _Samples:
        tables, groups, columns = len(self._rows), len(self._profile.groups), self.dense_columns
        generator = self._generator(stream, index)
        # Raw words only: unlike the distributions of numpy, their values are the same in every release.
        uniform = _uniform(generator.random_raw((tables + groups + 1, size)))
        ranks = self._sampler.ranks(uniform[:tables])
        events = uniform[tables : tables + groups]
        for number, table in enumerate(self._profile.tables.values()):
            if table.group is not None:
                event = events[table.group]
                ranks[number][(event >= table.forced_from) & (event < table.forced_below)] = 0
        return _Samples(ranks=ranks, dense=self._draw_dense(generator, (columns, size)), thresholds=uniform[-1])

    def _draw_dense(self, generator: np.random.Philox, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
        """Values of log(1 + count), about normal, cut at 0; a missing value is 0."""
        columns = list(self._profile.dense.values())
        cells = shape[0] * shape[1]
        lanes = generator.random_raw(cells).view(np.uint16).reshape(4, *shape)
        # The sum of four even numbers is close to a normal one (Irwin and Hall), and exact on any machine.
        normal = lanes.sum(axis=0, dtype=np.int32).astype(np.float32)
        normal -= np.float32(2.0 * 65535)
        normal *= _float_column([column["std"] / (65536.0 * np.sqrt(1.0 / 3.0)) for column in columns])
        normal += _float_column([column["mean"] for column in columns])
        np.maximum(normal, 0.0, out=normal)
        coins = generator.random_raw(-(-cells // 4)).view(np.uint16)[:cells].reshape(shape)
        present = coins >= _float_column([round(column["missing"] * 65536.0) for column in columns])
        values: npt.NDArray[np.float32] = normal * present
        return values


def _common_cap(sizes: list[int], *, max_rows: int) -> int:
    """The largest common cap whose capped sizes sum to `max_rows` at most."""
    low, high = 2, max(sizes)
    if sum(min(size, low) for size in sizes) > max_rows:
        raise ValueError(
            f"max_rows is {max_rows}: {len(sizes)} tables need {sum(min(size, low) for size in sizes)} rows at least"
        )
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(min(size, middle) for size in sizes) <= max_rows else (low, middle - 1)
    return low


def _uniform(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Words as float64 in [0, 1)."""
    uniform = (words >> np.uint64(11)).astype(np.float64)
    uniform *= 2.0**-53
    return uniform


def _float_column(values: Iterable[float]) -> npt.NDArray[np.float32]:
    return np.asarray(list(values), dtype=np.float32)[:, None]
