"""Rows on the device: slots that the tables of one width share, with their fused optimizer."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from systems.fbgemm.tbe import build_shared_tbe, set_tbe_steps, tbe_steps
from systems.features import Group
from systems.freq_cache.compiled import put_rows
from systems.freq_cache.tiers.slow_tier import RowLayout
from systems.spec import OptimizerKind, SparseOptimizer, row_type_of


class SlotTable:
    """`slots` rows of a group of tables on the device, with optimizer state, looked up and updated by fbgemm's TBE.

    Rows have their tables' type here, whatever their type in the records of `layout`.

    The columns of a slot beyond the `dim` of its row are padding: they are zero and get no gradient, so no optimizer
    changes them. But row-wise Adagrad divides the squared gradient by the columns of a slot instead of those of a row.
    So the gradient is multiplied by `sqrt(columns / dim)` and the learning rate divided by it: the state is then that
    of the row, and the step is unchanged.

    Arguments are on the device, weights excepted; nothing waits for it. Hooks are not Python functions: an interrupt is
    raised in those, and would end backward after some pools have updated their rows and before others have.
    """

    def __init__(
        self,
        *,
        slots: int,
        layout: RowLayout,
        group: Group,
        optimizer: SparseOptimizer,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self.layout = layout
        self._one_each = torch.empty(0, dtype=torch.int64, device=device)
        by_row = optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
        self._scale = scale = (layout.columns / layout.dim) ** 0.5 if by_row else 1.0
        self._tbe = build_shared_tbe(
            slots,
            layout.columns,
            table_of_feature=group.table_of_feature,
            pooling=group.tables[0].pooling,
            optimizer=replace(
                optimizer,
                lr=optimizer.lr / scale,
                weight_decay=optimizer.weight_decay * scale,
                max_gradient=optimizer.max_gradient * scale,
            ),
            device=device,
            row_type=row_type_of(group.tables[0]),
            checked=device.type == "cuda",  # the planner checks ids; on CUDA all systems keep fbgemm's check
        )
        # `data` hides fills from autograd's version check: no batch in flight updates a slot that is filled
        self.weights: Tensor = self._tbe.split_embedding_weights()[0].data
        states = self._tbe.split_optimizer_states()
        own = [state.data for state in states[0]] if states else []
        self.state: dict[str, Tensor] = dict(zip(layout.state, own, strict=True))

    def look_up(self, slots: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
        """Pool rows by slot, int32 `[n]`, in bags, with weights `[n]` from anywhere; fp32 `[batch, features * dim]`.

        `offsets`: start of each bag and end of the last one, int32; None: every bag has one id.

        fbgemm gets int64 slots, as it gets ids from all systems. On CUDA its backward sorts by `slot + table * slots`
        in the type of its input (v1.6.0 and v1.8.0, `transpose_embedding_input.cu`): int32 would wrap from 2**31
        on, and rows of one table would be updated as rows of another.
        """
        offsets = self._every_place(slots.numel()) if offsets is None else offsets
        if weights is not None:
            weights = weights.to(slots.device, non_blocking=True)
        if self._scale != 1 and weights is not None and weights.requires_grad and torch.is_grad_enabled():
            weights = weights.view_as(weights)
            weights.register_hook(partial(torch.mul, other=1 / self._scale))  # the gradient of rows, not of slots
        pooled: Tensor = self._tbe(slots.long(), offsets, weights)
        columns, dim = self.layout.columns, self.layout.dim
        if columns == dim:
            return pooled
        if self._scale != 1 and pooled.requires_grad:
            pooled.register_hook(partial(torch.mul, other=self._scale))
        by_feature: Tensor = pooled.unflatten(1, (-1, columns))
        return by_feature[:, :, :dim].flatten(1)

    def _every_place(self, ids: int) -> Tensor:
        if self._one_each.numel() <= ids:
            self._one_each = torch.arange(ids + 1, device=self.weights.device)
        return self._one_each[: ids + 1]

    def fill(self, slots: Tensor, records: Tensor) -> None:
        """Overwrite slots, int32 or int64 `[n]`, with records."""
        put_rows(self.weights, slots, self.layout.weights(records).to(self.weights.dtype))
        for name, values in self.layout.states(records).items():
            put_rows(self.state[name], slots, values)

    def read(self, slots: Tensor, records: Tensor) -> Tensor:
        """Write copies of slots, int32 or int64 `[n]`, into records, which are returned."""
        if not self.state and not self.rounds:
            torch.index_select(self.weights, 0, slots, out=records.view(self.weights.dtype))
            return records
        self.layout.set_weights(records, self.weights.index_select(0, slots))
        for name, values in self.layout.states(records).items():
            values.copy_(self.state[name].index_select(0, slots))
        return records

    def records(self, slots: Tensor) -> Tensor:
        """Copies of slots, int32 or int64 `[n]`, as new records."""
        return self.read(slots, self.layout.empty(slots.numel(), device=self.weights.device))

    def copy(self, slots: Tensor, source: "SlotTable", from_slots: Tensor) -> None:
        """Overwrite slots with slots of another pool, int64 `[n]` each, without rounding."""
        self.weights.index_copy_(0, slots, source.weights.index_select(0, from_slots))
        for name, state in self.state.items():
            state.index_copy_(0, slots, source.state[name].index_select(0, from_slots))

    @property
    def rounds(self) -> bool:
        """Whether records have lower precision than slots: `read` followed by `fill` may then change a slot."""
        return self.layout.dtype is not self.weights.dtype

    @property
    def steps(self) -> int:
        """Number of updates, as Adam counts them."""
        return tbe_steps(self._tbe)

    @steps.setter
    def steps(self, steps: int) -> None:
        set_tbe_steps(self._tbe, steps)

    def set_hyper_parameters(self, values: Mapping[str, float]) -> None:
        """Set `lr`, `eps`, `beta1`, `beta2` from the next lookup on."""
        scaled = {name: value / self._scale if name == "lr" else value for name, value in values.items()}
        self._tbe.update_hyper_parameters(scaled)

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of all rows, and of all optimizer state."""
        return self.weights.nbytes, sum(state.nbytes for state in self.state.values())
