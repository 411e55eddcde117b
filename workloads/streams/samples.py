"""Samples of a synthetic stream before they become a batch: ranks, bags, dense features, and thresholds for labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.batch import Split
from workloads.streams.draws import Floats, Ints, to_dense, to_uniform
from workloads.streams.profiles import DenseProfile

Singles = NDArray[np.float32]

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


def uniform_words(generator: np.random.Philox, shape: tuple[int, ...]) -> Floats:
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
