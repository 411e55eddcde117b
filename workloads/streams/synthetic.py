"""Synthetic click logs: the table sizes, access skew and click rate of a real dataset, with labels to learn."""

import itertools
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workloads import DataError
from workloads.batch import Batch, Split, bag_offsets
from workloads.schema import SCHEMAS, DatasetSchema, prefix_of
from workloads.streams.draws import Floats, Ints, to_uniform
from workloads.streams.planted import PlantedModel, Samples
from workloads.streams.profiles import DenseSampler, load_profile
from workloads.streams.tracks import MOVING_ROWS, Drift, Table, split_name, still_shares
from workloads.streams.zipf import RankSampler, RankScrambler

BEST_AUROC = dict.fromkeys(SCHEMAS, 0.80) | {"avazu": 0.76}
"""AUROC that the planted model of a dataset reaches on its own stream."""

_CALIBRATION_ROWS = 1 << 16
STREAMS = {Split.TRAIN: 0, Split.VALIDATION: 1, Split.TEST: 2}
"""Numbers of the streams of batches; the streams below are drawn from once, when a workload is made."""
CALIBRATION, BIJECTIONS, PLANTED, TIMELINE = 3, 4, 5, 6


class SyntheticWorkload:
    """A synthetic stream shaped like one of the datasets. Implements `Workload`.

    Per table, ranks follow a bounded Zipf law with the measured heavy hitters, missing values strike the measured
    groups of columns together, and a bijection scatters ranks over row ids. Where the schema has bags, the first id of
    a bag is such a draw and the others are further draws from the table's law. Every batch has a counter range of its
    own (Philox): the same in any process, and unlike any other batch.

    Args:
        schema: The dataset to imitate.
        rows: Rows by table, in the order of the schema.
        batch_size: Samples per batch.
        seed: Of all draws.
        track: How the stream depends on time; None: not at all.

    Attributes:
        profile: How the dataset is accessed.

    Raises:
        DataError: the batch size or the seed is out of range.
    """

    def __init__(
        self, *, schema: DatasetSchema, rows: Mapping[str, int], batch_size: int, seed: int, track: Drift | None = None
    ) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}: give at least 1 sample per batch")
        if not 0 <= seed < 1 << 64:
            raise DataError(f"seed is {seed}: give a number from 0 to 2**64 - 1")
        self.name = f"{schema.name}@{track.name}" if track else schema.name
        self.batch_size = batch_size
        self.tables = tuple(rows.items())
        self.dense_columns = len(schema.dense)
        self.batch_lookups = batch_size * sum(schema.bag_lengths)
        self._schema = schema
        self._rows = dict(rows)
        self._seed = seed
        self._track = track
        self.profile = load_profile(schema.profile, rows=self._rows)
        self._dense = DenseSampler(list(self.profile.dense.values()))
        self._sampler = RankSampler.of([table.law for table in self.profile.tables.values()])
        self._scrambler = RankScrambler.of(list(self._rows.values()), generator=self.generator(BIJECTIONS))
        keys = self.generator(TIMELINE).random_raw((len(rows), 2))[:, 0]  # the others are not used
        self._moving: list[Table | None] = [  # of each table: what its track needs, or None where it keeps still
            Table(table.law, int(table.group is not None), key, schema.train_rows)
            if track and published >= MOVING_ROWS and table.law.rows > 1
            else None
            for table, key, (_, published) in zip(self.profile.tables.values(), keys, schema.categorical, strict=True)
        ]
        self._planted = PlantedModel.calibrated(
            self.draw(CALIBRATION, 0, _CALIBRATION_ROWS),
            generator=self.generator(PLANTED),
            ctr=schema.ctr,
            auroc=BEST_AUROC[schema.name],
        )
        self.best_auroc: float | None = self._planted.best_auroc

    @classmethod
    def create(cls, dataset: str, *, batch_size: int, seed: int, max_rows: int | None = None) -> Self:
        """A stream at the published table sizes, or at smaller ones.

        Args:
            dataset: Name of a schema, or `schema@track`; see `workloads.streams.tracks`.
            batch_size: Samples per batch.
            seed: Equal seeds give equal streams.
            max_rows: Rows that all tables may hold together; one common cap, small tables keep their size.

        Raises:
            DataError: the dataset is unknown or a number is out of range.
        """
        dataset, track = split_name(dataset)
        if dataset not in SCHEMAS:
            raise DataError(f"unknown dataset {dataset!r}: choose one of {', '.join(SCHEMAS)}")
        schema = SCHEMAS[dataset]
        sizes = [rows for _, rows in schema.categorical]
        cap = max(sizes) if max_rows is None else _common_cap(sizes, max_rows=max_rows)
        rows = {name: min(count, cap) for name, count in schema.categorical}
        return cls(schema=schema, rows=rows, batch_size=batch_size, seed=seed, track=track)

    def epoch_rows(self) -> int:
        return self._schema.train_rows

    def batches(self, split: Split) -> int:
        return self._schema.splits[split] // self.batch_size

    def batch(self, index: int, split: Split = Split.TRAIN) -> Batch:
        count = self.batches(split)
        if not 0 <= index < count:
            raise IndexError(
                f"batch {index} of the {split} split of {self.name}: "
                f"there are {count} batches of {self.batch_size} samples, counted from 0"
            )
        samples = self.draw(STREAMS[split], index, self.batch_size)
        labels = samples.thresholds < self._planted.probabilities(samples)
        return Batch.of(
            keys=list(self._rows),
            ids=self._scrambler.ids(samples.ranks, samples.starts),
            lengths=samples.lengths,
            dense=np.ascontiguousarray(samples.dense.T),
            labels=labels.astype(np.float32),
        )

    def probabilities(self, index: int, split: Split = Split.TRAIN) -> Tensor:
        """True click probabilities of a batch, float64 `[batch]`: what no model can beat."""
        return torch.from_numpy(self._planted.probabilities(self.draw(STREAMS[split], index, self.batch_size)))

    def frequencies(self, prefix: float = 1.0) -> Mapping[str, Tensor]:
        # Drawn by row from the law and the track: as counts of so many independent samples are, without drawing the
        # samples. Beside the result it takes a few chunks of ranks.
        samples = prefix_of(self._schema.train_rows, prefix)
        frequencies: dict[str, Tensor] = {}
        tables = zip(self.profile.tables.items(), self._schema.bag_lengths, self._moving, strict=True)
        for number, ((name, table), length, moving) in enumerate(tables):
            accesses = np.empty(self._rows[name], dtype=np.int64)
            draws = np.random.default_rng((self._seed, number, samples))
            chunks = self._track.shares(moving, samples) if self._track and moving else still_shares(table.law)
            for start, drawn in chunks:
                shares = drawn * (length - table.forced)
                if start == 0:
                    shares[0] += table.forced
                ids = self._scrambler.table_ids(number, np.arange(start, start + shares.size, dtype=np.int64))
                accesses[ids] = draws.poisson(shares * samples)
            frequencies[name] = torch.from_numpy(accesses)
        return frequencies

    def shrunk(self, *, max_table_rows: int, batch_size: int) -> "SyntheticWorkload":
        rows = {name: min(count, max_table_rows) for name, count in self._rows.items()}
        return SyntheticWorkload(
            schema=self._schema, rows=rows, batch_size=batch_size, seed=self._seed, track=self._track
        )

    def generator(self, stream: int, index: int = 0) -> np.random.Philox:
        """A generator whose counter range no other stream, index or dataset shares."""
        size = self.batch_size if stream < CALIBRATION else 0
        # Typed words: numpy would take a list with a seed above 2**63 by way of floats.
        return np.random.Philox(
            key=np.array([self._seed, zlib.crc32(self._schema.name.encode())], dtype=np.uint64),
            # The lowest word counts a batch's own draws.
            counter=np.array([0, size, index, stream], dtype=np.uint64),
        )

    def draw(self, stream: int, index: int, size: int) -> Samples:
        """Draw `size` samples: batch `index` of one of `STREAMS`, or those of `CALIBRATION`."""
        tables, groups = len(self.tables), len(self.profile.groups)
        generator = self.generator(stream, index)
        # Raw words only: unlike the distributions of numpy, their values are the same in every release.
        uniform = _uniform_words(generator, (tables + groups + 1, size))
        events = uniform[tables : tables + groups]
        dense = self._dense.draw(generator, events[self.profile.dense_group])
        lookups = uniform[:tables].reshape(-1)
        lengths = np.repeat(np.array(self._schema.bag_lengths, dtype=np.int64)[:, None], size, axis=1)
        offsets = bag_offsets(lengths)
        if self._schema.hotness is not None:
            generator.random_raw(tables * size, output=False)  # lengths were drawn once, and the words are skipped
            firsts, lookups = lookups, _uniform_words(generator, (int(offsets[-1]),))
            lookups[offsets[:-1]] = firsts
        starts = offsets[::size].copy()
        ranks = self._sampler.ranks(lookups, starts)
        ranks[offsets[:-1].reshape(tables, size)[self._missing(events)]] = 0
        if self._track:
            times = np.repeat(np.tile(self._times(stream, index, size), tables), lengths.reshape(-1))  # of every lookup
            for table, (start, stop) in zip(self._moving, itertools.pairwise(starts.tolist()), strict=True):
                if table:
                    self._track.identify(table, ranks[start:stop], times[start:stop])
        return Samples(ranks=ranks, lengths=lengths, offsets=offsets, dense=dense, thresholds=uniform[-1])

    def _missing(self, events: Floats) -> npt.NDArray[np.bool_]:
        """Whether each value is missing, bool `[tables, n]`, by the events of the groups, `[groups, n]`."""
        missing = np.zeros((len(self.tables), events.shape[1]), dtype=np.bool_)
        for number, table in enumerate(self.profile.tables.values()):
            if table.group is not None:
                event = events[table.group]
                np.logical_and(event >= table.forced_from, event < table.forced_below, out=missing[number])
        return missing

    def _times(self, stream: int, index: int, size: int) -> Ints:
        """When the samples of a draw happen, counted from the beginning of the training split, int64 `[size]`."""
        samples = np.arange(size, dtype=np.int64)
        rows = list(self._schema.splits.values())
        if stream == CALIBRATION:  # all of the training split, evenly
            return samples * rows[0] // size
        return samples + (sum(rows[:stream]) + index * size)


def _common_cap(sizes: list[int], *, max_rows: int) -> int:
    """The largest common cap, 2 at least, whose capped sizes sum to `max_rows` at most."""

    def capped(cap: int) -> int:
        return sum(min(size, cap) for size in sizes)

    if capped(2) > max_rows:
        raise DataError(f"max_rows is {max_rows}: {len(sizes)} tables need {capped(2)} rows at least")
    return 1 + bisect_right(range(2, max(sizes) + 1), max_rows, key=capped)


def _uniform_words(generator: np.random.Philox, shape: tuple[int, ...]) -> Floats:
    """The generator's next words as float64 in [0, 1)."""
    uniform = np.empty(shape)
    to_uniform(generator.random_raw(uniform.size), uniform.reshape(-1))
    return uniform
