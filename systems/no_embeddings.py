"""A control: the same model with every embedding zero; it fails verification by design."""

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.contract import MemoryBreakdown, Placement, Rows, SystemSpec, Tier
from systems.unique_counter import CountedSystem


class NoEmbeddings(CountedSystem):
    """No rows at all, every embedding is zero: it shows how good the model is without them, and is never ranked."""

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {}

    @property
    def placement(self) -> Placement:
        return Placement(label="no rows", offloads=False)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        (ordered,) = self._groups.split(features)
        width = sum(self._groups.groups[0].dims)
        return self._groups.join([torch.zeros(ordered.stride(), width, device=self.spec.device)])

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)  # nothing is kept

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        dim = self.tables[table].embedding_dim
        return Rows(torch.zeros(ids.numel(), dim), self.spec.optimizer.zero_state(ids.numel(), dim))

    def set_learning_rate(self, lr: float) -> None:
        """Nothing is trained."""

    def memory(self) -> MemoryBreakdown:
        return {}
