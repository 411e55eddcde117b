"""The slow tier: all rows and their optimizer state in host memory."""

from __future__ import annotations

import torch
from torch import Tensor

from systems.contract import Rows, SparseOptimizer


class HostTier:
    """`rows` rows of one width in pageable host memory; pages that are never written cost nothing."""

    def __init__(self, *, rows: int, dim: int, optimizer: SparseOptimizer) -> None:
        self.weights = torch.zeros(rows, dim)
        self.state = {
            name: torch.zeros((rows,) if width == 1 else (rows, width))
            for name, width in optimizer.state_shapes(dim).items()
        }

    def gather(self, rows: Tensor) -> Rows:
        """Copies of rows, int64 `[n]`."""
        return Rows(
            self.weights.index_select(0, rows),
            {name: state.index_select(0, rows) for name, state in self.state.items()},
        )

    def scatter(self, rows: Tensor, values: Rows) -> None:
        """Overwrite rows, int64 `[n]`, each once; state that `values` does not name becomes zero."""
        self.weights.index_copy_(0, rows, values.weights)
        for name, state in self.state.items():
            if name in values.state:
                state.index_copy_(0, rows, values.state[name])
            else:
                state.index_fill_(0, rows, 0.0)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows."""
        return self.weights.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all optimizer state."""
        return sum(state.nbytes for state in self.state.values())
