"""Which rows deserve a slot. A policy is a score per row; the row with the lowest score is evicted first."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Policy(ABC):
    """Scores of all rows of one cache.

    Attributes:
        scores: `[rows]` on the host. Higher stays longer. Of equal scores, the row in the lower slot leaves first, and
            the lower row enters free slots first.
    """

    scores: Tensor

    @abstractmethod
    def observe(self, ids: Tensor) -> None:
        """See the ids of a batch, int64 `[n]`, duplicates included, before victims are chosen."""


class StaticFrequency(Policy):
    """Rank by how often a row occurs in the training split, known beforehand. Never changes. arXiv 2208.05321, 4.2."""

    def __init__(self, frequencies: Tensor) -> None:
        self.scores = frequencies.to(torch.float32)

    def observe(self, ids: Tensor) -> None:
        """The order was fixed beforehand."""


class LFU(Policy):
    """Rank by occurrences so far. Counts survive eviction and never decay, like fbgemm's; 4 B per row."""

    def __init__(self, rows: int) -> None:
        self.scores = torch.zeros(rows, dtype=torch.int32)
        self._ones = torch.ones(0, dtype=torch.int32)

    def observe(self, ids: Tensor) -> None:
        if self._ones.numel() < ids.numel():
            self._ones = torch.ones(ids.numel(), dtype=torch.int32)
        self.scores.index_add_(0, ids, self._ones[: ids.numel()])
