"""The three parts of a dataset, and how many rows a share of one is."""

import enum


class Split(enum.StrEnum):
    """Parts of a dataset, in time order."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


def prefix_of(count: int, share: float) -> int:
    """How many of `count` rows, or batches, the first `share` of them is: rounded, at least 1.

    Raises:
        ValueError: the share is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"prefix is {share}: give a share of the training split, above 0 to 1")
    return min(count, max(1, round(share * count)))
