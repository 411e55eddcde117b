"""A batch, and the protocol of a workload: what the harness trains on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from workloads.schema import Split

__all__ = ["Batch", "Split", "Workload"]


@dataclass(frozen=True)
class Batch:
    """One batch on the host.

    Attributes:
        dense: Dense features, fp32 `[batch, dense columns]`.
        features: Row ids, values int64 ordered by feature then sample; bags may have any length, 0 too.
        labels: fp32 `[batch]`, 0 or 1.
    """

    dense: Tensor
    features: KeyedJaggedTensor
    labels: Tensor

    @classmethod
    def of(
        cls,
        *,
        keys: list[str],
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        dense: npt.NDArray[np.float32],
        labels: npt.NDArray[np.float32],
    ) -> Self:
        """A batch that uses the memory of arrays.

        Args:
            keys: Feature names.
            ids: int64 `[sum of lengths]`, by feature, then sample, then place in the bag.
            lengths: Ids of every bag, int64 `[features, batch]`, C-contiguous.
            dense: fp32 `[batch, dense columns]`.
            labels: fp32 `[batch]`.
        """
        features = KeyedJaggedTensor(
            keys=keys,
            values=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths.reshape(-1)),
            offsets=torch.from_numpy(bag_offsets(lengths)),
            stride=len(labels),
        )
        return cls(dense=torch.from_numpy(dense), features=features, labels=torch.from_numpy(labels))


def bag_offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The place at which each bag begins, and the end: int64 `[bags + 1]`."""
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class Workload(Protocol):
    """A dataset cut to one batch size, every batch reachable by its index.

    Attributes:
        name: On the command line.
        batch_size: Samples per batch.
        tables: Names with their rows; each table serves the feature of its own name.
        dense_columns: Dense features per sample.
        best_auroc: AUROC of the model that generated the labels, on its own stream; None where labels are real.
        batch_lookups: Ids per batch over all tables, at most.
    """

    name: str
    batch_size: int
    tables: tuple[tuple[str, int], ...]
    dense_columns: int
    best_auroc: float | None
    batch_lookups: int

    def epoch_rows(self) -> int:
        """Samples of the training split that time per epoch refers to."""

    def batches(self, split: Split) -> int:
        """Full batches that a split holds; batch indices run from 0 to this number."""

    def batch(self, index: int, split: Split = Split.TRAIN) -> Batch:
        """Batch `index` of a split: the same for equal arguments in any process; none equals another.

        Raises:
            IndexError: the split has no batch of that index.
        """

    def frequencies(self, prefix: float = 1.0) -> Mapping[str, Tensor]:
        """Accesses per row, int64 `[rows]` by table, expected or counted on the training split alone.

        Args:
            prefix: Only the first such share of the training split is counted, above 0 to 1. A synthetic stream draws
                the counts that so many samples of its law would have, not those of its own first samples.

        Raises:
            ValueError: the prefix is out of range.
        """

    def shrunk(self, *, max_table_rows: int, batch_size: int) -> "Workload":
        """A small copy for verification: table sizes capped (ids folded into them), another batch size."""
