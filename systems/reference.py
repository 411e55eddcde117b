"""The reference: one plain `nn.EmbeddingBag` per table, nothing fused, nothing cached."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.contract import MemoryBreakdown, MemoryUse, Rows, SystemSpec, Tier
from systems.unique_counter import CountedSystem


class ReferenceSystem(CountedSystem):
    """Every row in GPU memory, in PyTorch's own embedding bags: plain, slow, and what all others are checked against.

    The bags have sparse gradients; the update, `SparseOptimizer.step`, runs in a gradient hook.

    A row's gradient is summed over the batch in order of appearance and `row - lr * g` is rounded once (fp64 inside),
    which is what fbgemm's CPU kernel computes: with SGD and a CPU the two agree bitwise. (fbgemm 1.6 also
    rounds `lr * g`: there that holds at a learning rate of 1.)
    """

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._optimizer = spec.optimizer
        # A plain dict hides the bags from `parameters()` and `state_dict()`: a dense optimizer must not see the rows.
        self._bags = {
            table.name: nn.EmbeddingBag.from_pretrained(
                torch.zeros(table.num_embeddings, table.embedding_dim, device=spec.device),
                freeze=False,
                mode="sum",
                sparse=True,
                include_last_offset=True,
            )
            for table in spec.tables
        }
        self._state = {
            table.name: spec.optimizer.zero_state(table.num_embeddings, table.embedding_dim, spec.device)
            for table in spec.tables
        }
        self._update_counts = {table.name: 0 for table in spec.tables}
        for table in spec.tables:
            weight = self._weight(table.name)
            weight.register_post_accumulate_grad_hook(lambda leaf, name=table.name: self._update(name, leaf))

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DEVICE: spec.row_bytes + spec.state_bytes}

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        (ordered,) = self._groups.split(features)
        self._counter.observe(ordered)
        parts = ordered.to_dict()
        outputs = [
            self._bags[table.name](parts[name].values(), parts[name].offsets())
            for table in self.spec.tables
            for name in table.feature_names
        ]
        return self._groups.join([torch.cat(outputs, dim=1)])

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        stop = start + rows.weights.shape[0]
        with torch.no_grad():
            self._weight(table)[start:stop] = rows.weights
            for name, state in self._state[table].items():
                state[start:stop] = rows.state.get(name, 0.0)

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        ids = ids.to(self.spec.device)
        weights = self._weight(table).detach().index_select(0, ids).cpu()
        return Rows(weights, {name: s.index_select(0, ids).cpu() for name, s in self._state[table].items()})

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer = replace(self._optimizer, lr=lr)

    def optimizer_steps(self, table: str) -> int:
        return self._update_counts[table]

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        self._update_counts[table] = steps

    def memory(self) -> MemoryBreakdown:
        state = sum(tensor.nbytes for states in self._state.values() for tensor in states.values())
        rows = sum(self._weight(name).nbytes for name in self.tables)
        return {(Tier.DEVICE, MemoryUse.ROWS): rows, (Tier.DEVICE, MemoryUse.STATE): state}

    def _weight(self, table: str) -> Tensor:
        return self._bags[table].weight

    @torch.no_grad()
    def _update(self, table: str, leaf: Tensor) -> None:
        """The sparse update of one table; replaces an optimizer object."""
        if leaf.grad is None:
            return
        ids, position = leaf.grad._indices()[0].unique(return_inverse=True)
        values = leaf.grad._values()
        leaf.grad = None
        gradient = torch.zeros(ids.numel(), leaf.shape[1], device=leaf.device).index_add_(0, position, values)
        self._update_counts[table] += 1
        state = {name: kept.index_select(0, ids) for name, kept in self._state[table].items()}
        step = self._optimizer.step(gradient, state, self._update_counts[table])
        for name, values in state.items():
            self._state[table][name].index_copy_(0, ids, values)
        leaf.index_copy_(0, ids, (leaf.index_select(0, ids).double() - step).float())
