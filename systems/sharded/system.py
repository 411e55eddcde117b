"""Base class of systems whose rows are sharded over ranks."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, Rows, SystemSpec
from systems.sharded.placement import Shard


class ShardedSystem(EmbeddingSystem):
    """Rows sharded over the ranks of the default process group, which must be initialized before.

    `forward` and `prefetch` take this rank's part of a batch, of the same length on all ranks. `load_rows` takes all
    rows on every rank and keeps this rank's. `read_rows`, `flush` and `state_dict` are collective: every rank calls
    them in the same order and gets the rows of all ranks. `memory` and `counters` are this rank's own; its lookups are
    the ids that it receives.
    """

    @property
    @abstractmethod
    def shards(self) -> Sequence[Shard]:
        """Shards of this rank."""

    @abstractmethod
    def load_shard(self, shard: Shard, start: int, rows: Rows) -> None:
        """Overwrite rows of a shard, numbered from its own first row."""

    @abstractmethod
    def read_shard(self, shard: Shard, ids: Tensor) -> Rows:
        """Copies of rows of a shard, numbered from its own first row."""

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        if spec.optimizer.kind is OptimizerKind.ADAM:
            yield "on ranks there is no Adam, which counts the steps of a table: use sgd or an Adagrad"
        if not isinstance(spec.budget, CacheRatio):
            yield "ranks cache a share of their rows each: give a cache ratio, no budget"
        yield from super().refusals(spec)

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        stop = start + rows.weights.shape[0]
        for shard in self.shards:
            first, last = max(start, shard.first), min(stop, shard.first + shard.rows)
            if shard.table == table and first < last:
                part = slice(first - start, last - start)
                state = {name: value[part] for name, value in rows.state.items()}
                self.load_shard(shard, first - shard.first, Rows(rows.weights[part], state))

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        dim = self.tables[table].embedding_dim
        found = Rows(torch.zeros(ids.numel(), dim), self.spec.optimizer.zero_state(ids.numel(), dim))
        for shard in self.shards:
            if shard.table == table:
                mine = ((ids >= shard.first) & (ids < shard.first + shard.rows)).nonzero().squeeze(1)
                part = self.read_shard(shard, ids[mine] - shard.first)
                found.weights[mine] = part.weights
                for name, value in part.state.items():
                    found.state[name][mine] = value
        for value in (found.weights, *found.state.values()):
            dist.all_reduce(value)  # a row has one owner: a second one would show as a sum
        return found
