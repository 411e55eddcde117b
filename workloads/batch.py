"""A batch, and the protocol of a workload: what the harness trains on."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor


class Split(enum.StrEnum):
    """Parts of a dataset, in time order."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class DataKind(enum.StrEnum):
    """Whether batches come from a generator or from a prepared dataset."""

    SYNTHETIC = "synthetic"
    REAL = "real"


@dataclass(frozen=True)
class Batch:
    """One batch on the host.

    Attributes:
        dense: Dense features, fp32 `[batch, dense columns]`.
        features: Row ids, one per table and sample, values int64 ordered by feature then sample.
        labels: fp32 `[batch]`, 0 or 1.
    """

    dense: Tensor
    features: KeyedJaggedTensor
    labels: Tensor

    @classmethod
    def one_hot(
        cls,
        *,
        keys: list[str],
        ids: npt.NDArray[np.int64],
        dense: npt.NDArray[np.float32],
        labels: npt.NDArray[np.float32],
    ) -> Batch:
        """A batch with exactly one id per feature and sample.

        Args:
            keys: Feature names.
            ids: int64 `[features, batch]`, C-contiguous.
            dense: fp32 `[batch, dense columns]`.
            labels: fp32 `[batch]`.
        """
        values = torch.from_numpy(ids.reshape(-1))
        features = KeyedJaggedTensor(
            keys=keys,
            values=values,
            lengths=torch.ones(values.numel(), dtype=torch.int64),
            offsets=torch.arange(values.numel() + 1, dtype=torch.int64),
            stride=ids.shape[1],
        )
        return cls(dense=torch.from_numpy(dense), features=features, labels=torch.from_numpy(labels))


class Workload(Protocol):
    """A dataset cut to one batch size, every batch reachable by its index."""

    @property
    def name(self) -> str:
        """The workload's name on the command line."""

    @property
    def kind(self) -> DataKind:
        """Synthetic or real."""

    @property
    def batch_size(self) -> int:
        """Samples per batch."""

    @property
    def tables(self) -> tuple[tuple[str, int], ...]:
        """Table names with their rows; each table serves the feature of its own name."""

    @property
    def dense_columns(self) -> int:
        """Dense features per sample."""

    @property
    def best_auroc(self) -> float | None:
        """AUROC of the model that generated the labels, on its own stream; None where labels are real."""

    def epoch_rows(self) -> int:
        """Samples of the training split that time per epoch refers to."""

    def batches(self, split: Split) -> int:
        """Full batches that a split holds; batch indices run from 0 to this number."""

    def batch(self, index: int, split: Split = Split.TRAIN) -> Batch:
        """Batch `index` of a split: the same for equal arguments in any process; none equals another.

        Raises:
            IndexError: the split has no batch of that index.
        """

    def frequencies(self) -> Mapping[str, Tensor]:
        """Accesses per row, int64 `[rows]` by table, expected or counted on the training split alone."""

    def shrunk(self, *, max_table_rows: int, batch_size: int) -> Workload:
        """A small copy for verification: table sizes capped (ids folded into them), another batch size."""
