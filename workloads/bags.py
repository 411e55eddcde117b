"""How many ids a sample has in every column of a multi-hot dataset."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from workloads.streams.draws import to_lengths

MLPERF_HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids per bag of the 26 columns of Criteo 1TB in MLPerf's DLRM v2.

Source: mlcommons/training `recommendation_v2/torchrec_dlrm/README.MD` @3e2f7317, `--multi_hot_sizes`.
"""


@dataclass(frozen=True, kw_only=True)
class BagLaw:
    """The lengths of bags. Each column's are independent of the other columns' and of the ids.

    A bag has one id. With probability `more` it goes on to a second, then with the same probability to a third, and so
    on until it has `longest`: the geometric law, cut. With `more` at 1 all bags are of one length.

    Attributes:
        longest: Most ids of a bag, by column.
        more: Probability that a bag goes on, by column.
        missing_is_empty: A missing value is an empty bag; otherwise it is an id like others, rank 0.
    """

    longest: tuple[int, ...]
    more: tuple[float, ...]
    missing_is_empty: bool

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: naming what is wrong.
        """
        if len(self.longest) != len(self.more):
            raise ValueError(
                f"longest has {len(self.longest)} columns and more has {len(self.more)}: give one per column"
            )
        if min(self.longest) < 1:
            raise ValueError(f"the longest bag of a column has {min(self.longest)} ids: give 1 or more")
        if not 0.0 <= min(self.more) <= max(self.more) <= 1.0:
            raise ValueError(f"more runs from {min(self.more)} to {max(self.more)}: it is a probability, 0 to 1")

    @classmethod
    def fixed(cls, hotness: tuple[int, ...]) -> Self:
        """Bags of one length per column, none of them empty."""
        return cls(longest=hotness, more=(1.0,) * len(hotness), missing_is_empty=False)

    @classmethod
    def geometric(cls, mean: tuple[int, ...], *, times: int) -> Self:
        """Bags of varying length, empty where the value is missing.

        Args:
            mean: Mean length of a bag that is not empty, by column, were none cut; 1 or more.
            times: The longest bag, in means; a mean of 1 gives bags of one id.
        """
        return cls(
            longest=tuple(1 if m == 1 else m * times for m in mean),
            more=tuple(1.0 - 1.0 / m for m in mean),
            missing_is_empty=True,
        )

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean length of a bag that is not empty, by column."""
        return tuple(
            float(sum(more**length for length in range(longest)))
            for longest, more in zip(self.longest, self.more, strict=True)
        )

    @property
    def mean_hotness(self) -> float:
        """Mean length of a bag that is not empty, over all columns."""
        return sum(self.mean) / len(self.mean)

    def lengths(self, uniform: npt.NDArray[np.float64], missing: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Lengths of bags.

        Args:
            uniform: float64 `[columns, n]` in [0, 1).
            missing: Where the value is missing, bool `[columns, n]`.

        Returns:
            int64 `[columns, n]`.
        """
        lengths = np.empty(uniform.shape, dtype=np.int64)
        to_lengths(uniform, np.asarray(self.longest), np.asarray(self.more), lengths)
        if self.missing_is_empty:
            np.copyto(lengths, 0, where=missing)
        return lengths
