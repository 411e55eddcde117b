"""Dense features of the synthetic streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workloads.draws import to_dense
from workloads.profiles import DenseEntry

Floats = npt.NDArray[np.float32]


class DenseSampler:
    """Draws values of log(1 + count), about normal and cut at 0; a missing value is 0.

    Args:
        columns: Share of missing values, mean and deviation by column.
    """

    def __init__(self, columns: Sequence[DenseEntry]) -> None:
        # The sum of four even numbers is close to a normal one (Irwin and Hall), and exact on any machine.
        spread = 65536.0 * np.sqrt(1.0 / 3.0)
        self._scale = np.asarray([column["std"] / spread for column in columns], dtype=np.float32)
        self._mean = np.asarray([column["mean"] for column in columns], dtype=np.float32)
        self._missing = np.asarray([round(column["missing"] * 65536.0) for column in columns], dtype=np.int64)

    def draw(self, generator: np.random.Philox, size: int) -> tuple[Floats, Floats]:
        """Features of `size` samples, fp32 `[columns, size]`, and the same as `[size, columns]`."""
        columns = self._mean.size
        cells = columns * size
        words = generator.random_raw(cells).view(np.uint16).reshape(4, columns, size)
        coins = generator.random_raw(-(-cells // 4)).view(np.uint16)[:cells].reshape(columns, size)
        by_column, by_sample = np.empty((columns, size), np.float32), np.empty((size, columns), np.float32)
        to_dense(words, coins, self._scale, self._mean, self._missing, by_column, by_sample)
        return by_column, by_sample
