"""The parts of a dataset."""

from __future__ import annotations

import enum


class Split(enum.StrEnum):
    """Parts of a dataset, in time order."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"
