"""Rows on the device: a table of slots that all features of one width share, with its fused optimizer."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrec import PoolingType

from systems.contract import Rows, SparseOptimizer
from systems.tbe import build_tbe


class RowPool:
    """`slots` rows of one width on the device, with optimizer state, looked up by fbgemm's TBE.

    On a CUDA device rows travel through pinned staging on the current stream; a copy to the host is waited for, since
    the caller scatters it at once.
    """

    def __init__(
        self,
        *,
        slots: int,
        dim: int,
        features: int,
        pooling: PoolingType,
        optimizer: SparseOptimizer,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self.device = device
        self._tbe = build_tbe(
            [(slots, dim)],
            table_of_feature=[0] * features,
            pooling=pooling,
            optimizer=optimizer,
            device=device,
        )
        self.weights: Tensor = self._tbe.split_embedding_weights()[0]
        states = self._tbe.split_optimizer_states()
        names = optimizer.state_shapes(dim)
        self.state: dict[str, Tensor] = dict(zip(names, states[0], strict=True)) if states else {}

    def look_up(self, slots: Tensor, offsets: Tensor) -> Tensor:
        """Pool rows by slot: int64 `[n]` and bag offsets, both on the host; fp32 `[batch, features * dim]`."""
        pooled: Tensor = self._tbe(self._to_device(slots), self._to_device(offsets))
        return pooled

    def fill(self, slots: Tensor, rows: Rows) -> None:
        """Overwrite slots (int64, host) with rows from the host."""
        where = self._to_device(slots)
        self.weights.index_copy_(0, where, self._to_device(rows.weights))
        for name, state in self.state.items():
            state.index_copy_(0, where, self._to_device(rows.state[name]))

    def read(self, slots: Tensor) -> Rows:
        """Copies of slots on the host."""
        where = self._to_device(slots)
        return Rows(
            self.weights.index_select(0, where).cpu(),
            {name: state.index_select(0, where).cpu() for name, state in self.state.items()},
        )

    def copy_from(self, other: RowPool, *, theirs: Tensor, ours: Tensor) -> None:
        """Copy slots of another pool into slots of this one, on the device."""
        source, target = self._to_device(theirs), self._to_device(ours)
        self.weights.index_copy_(0, target, other.weights.index_select(0, source))
        for name, state in self.state.items():
            state.index_copy_(0, target, other.state[name].index_select(0, source))

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows."""
        return self.weights.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all optimizer state."""
        return sum(state.nbytes for state in self.state.values())

    def _to_device(self, tensor: Tensor) -> Tensor:
        """Copy without waiting: from pageable memory torch would wait for all that the device has yet to do."""
        if self.device.type == "cpu":
            return tensor
        # torch keeps the pinned block until the copy, recorded on this stream, has run
        return tensor.pin_memory().to(self.device, non_blocking=True)
