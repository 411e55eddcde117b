"""Samples of a synthetic stream before they become a batch: ranks, bags, dense features, and thresholds for labels."""

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workloads.batch import Split, bag_offsets
from workloads.schema import DatasetSchema
from workloads.streams.draws import to_dense, to_uniform
from workloads.streams.profiles import DenseProfile, load_profile
from workloads.streams.track import KEYS, Table, Track
from workloads.streams.tracks import MOVING_ROWS
from workloads.streams.zipf import RankSampler

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

STREAMS = {Split.TRAIN: 0, Split.VALIDATION: 1, Split.TEST: 2}
"""Numbers of the streams of batches; the streams below are drawn from once, when a workload is made."""
CALIBRATION, BIJECTIONS, PLANTED, TIMELINE = 3, 4, 5, 6

_COIN_STEPS = 1 << 16
"""Steps in which a coin is read: the shares of missing values are exact to 1 in 65,536."""


@dataclass(frozen=True)
class Samples:
    """One draw of `n` samples.

    Attributes:
        ranks: By table, then sample, then place in the bag, int64 `[sum of lengths]`.
        lengths: Ids per bag, int64 `[tables, n]`.
        offsets: Where every bag's ranks begin, and their number, int64 `[tables * n + 1]`.
        dense: fp32 `[dense columns, n]`.
        thresholds: A sample is clicked where its probability is above, float64 `[n]`.
    """

    ranks: Ints
    lengths: Ints
    offsets: Ints
    dense: Singles
    thresholds: Floats

    @property
    def starts(self) -> Ints:
        """The place at which each table's ranks begin, and their number, int64 `[tables + 1]`."""
        return self.offsets[:: self.thresholds.size].copy()


class SampleSource:
    """Draws samples by the measured law of a dataset. Every batch has a counter range of its own (Philox).

    Args:
        schema: The dataset to imitate.
        rows: Rows by table, in the order of the schema.
        batch_size: Samples per batch.
        seed: Of all draws.
        track: How the stream depends on time; None: not at all.

    Attributes:
        profile: How the dataset is accessed.
        tracks: What happens to each table: the track, or nothing.
        tables: The tables as tracks see them.
    """

    def __init__(
        self, *, schema: DatasetSchema, rows: Mapping[str, int], batch_size: int, seed: int, track: Track | None
    ) -> None:
        self._schema = schema
        self._batch_size = batch_size
        self._seed = seed
        self._track = track
        self.profile = load_profile(schema.profile, rows=dict(rows))
        self._dense = DenseSampler(list(self.profile.dense.values()))
        self._sampler = RankSampler([table.law for table in self.profile.tables.values()])
        keys = self.generator(TIMELINE).random_raw((len(rows), KEYS))
        self.tables = [
            Table(table.law, int(table.group is not None), words, schema.train_rows)
            for table, words in zip(self.profile.tables.values(), keys, strict=True)
        ]
        self.tracks = [
            track if track and published >= MOVING_ROWS and table.law.rows > 1 else Track()
            for table, (_, published) in zip(self.tables, schema.categorical, strict=True)
        ]

    def generator(self, stream: int, index: int = 0) -> np.random.Philox:
        """A generator whose counter range no other stream, index or dataset shares."""
        size = self._batch_size if stream < CALIBRATION else 0
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
        uniform = _uniform(generator, (tables + groups + 1, size))
        events = uniform[tables : tables + groups]
        dense = self._dense.draw(generator, events[self.profile.dense_group])
        lookups = uniform[:tables].reshape(-1)
        lengths = np.repeat(np.array(self._schema.bag_lengths, dtype=np.int64)[:, None], size, axis=1)
        offsets = bag_offsets(lengths)
        if self._schema.hotness is not None:
            generator.random_raw(tables * size, output=False)  # lengths were drawn once, and the words are skipped
            firsts, lookups = lookups, _uniform(generator, (int(offsets[-1]),))
            lookups[offsets[:-1]] = firsts
        starts = offsets[::size].copy()
        ranks = self._sampler.ranks(lookups, starts)
        ranks[offsets[:-1].reshape(tables, size)[self._missing(events)]] = 0
        if self._track:
            times = np.repeat(np.tile(self._times(stream, index, size), tables), lengths.reshape(-1))  # of every lookup
            parts = [slice(start, stop) for start, stop in itertools.pairwise(starts.tolist())]
            for track, table, part in zip(self.tracks, self.tables, parts, strict=True):
                track.identify(table, ranks[part], times[part])
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


def _uniform(generator: np.random.Philox, shape: tuple[int, ...]) -> Floats:
    """The generator's next words as float64 in [0, 1)."""
    uniform = np.empty(shape)
    to_uniform(generator.random_raw(uniform.size), uniform.reshape(-1))
    return uniform


class DenseSampler:
    """Draws values of log(1 + count), about normal and cut at 0; a missing value is 0.

    All columns share one random number per sample, the coin, so that they are missing together as in real rows.

    Args:
        columns: Mean, deviation and missing ranges by column, 32 columns at most.
    """

    def __init__(self, columns: Sequence[DenseProfile]) -> None:
        # The sum of four even numbers is close to a normal one (Irwin and Hall), and exact on any machine.
        spread = 65536.0 * np.sqrt(1.0 / 3.0)
        self._scale = np.asarray([column.std / spread for column in columns], dtype=np.float32)
        self._mean = np.asarray([column.mean for column in columns], dtype=np.float32)
        self._missing = np.zeros(_COIN_STEPS, dtype=np.uint32)
        for number, column in enumerate(columns):
            for start, stop in column.missing:
                self._missing[round(start * _COIN_STEPS) : round(stop * _COIN_STEPS)] |= np.uint32(1 << number)

    def draw(self, generator: np.random.Philox, coins: Floats) -> Singles:
        """Features of one sample per coin, fp32 `[columns, n]`.

        Args:
            generator: Gives the words of the values.
            coins: Say what is missing, in [0, 1), float64 `[n]`: numbers of the group `DatasetProfile.dense_group`.
        """
        columns, size = self._mean.size, coins.size
        words = generator.random_raw(columns * size).view(np.uint16).reshape(4, columns, size)
        features = np.empty((columns, size), np.float32)
        to_dense(words, coins, self._missing, self._scale, self._mean, features)
        return features
