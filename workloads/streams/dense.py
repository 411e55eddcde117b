"""Dense features of the synthetic streams."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workloads.streams.draws import to_dense
from workloads.streams.profiles import DenseProfile

Floats = npt.NDArray[np.float32]

_STEPS = 1 << 16
"""Steps in which a coin is read: the shares of missing values are exact to 1 in 65,536."""


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
        self._missing = np.zeros(_STEPS, dtype=np.uint32)
        for number, column in enumerate(columns):
            for start, stop in column.missing:
                self._missing[round(start * _STEPS) : round(stop * _STEPS)] |= np.uint32(1 << number)

    def draw(self, generator: np.random.Philox, coins: npt.NDArray[np.float64]) -> tuple[Floats, Floats]:
        """Features of one sample per coin, fp32 `[columns, n]`, and the same as `[n, columns]`.

        Args:
            generator: Gives the words of the values.
            coins: Say what is missing, in [0, 1), float64 `[n]`: numbers of the group `DatasetProfile.dense_group`.
        """
        columns, size = self._mean.size, coins.size
        words = generator.random_raw(columns * size).view(np.uint16).reshape(4, columns, size)
        by_column, by_sample = np.empty((columns, size), np.float32), np.empty((size, columns), np.float32)
        to_dense(words, coins, self._missing, self._scale, self._mean, by_column, by_sample)
        return by_column, by_sample
