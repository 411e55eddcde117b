"""Assignment of rows to ranks, and the base class of systems whose rows are sharded so."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, Rows, SystemSpec
from systems.spec import row_bytes_of

PLACEMENTS = ("tables", "rows", "misses")


@dataclass(frozen=True)
class Shard:
    """Rows `first` to `first + rows - 1` of a table."""

    table: str
    first: int
    rows: int


Layout = tuple[tuple[Shard, ...], ...]
"""Shards by rank: whole tables first, then its range of each table that is cut; a cut table is on every rank."""


def place(
    tables: Sequence[EmbeddingBagConfig], *, how: str, ranks: int, misses: Mapping[str, Tensor] | None = None
) -> Layout:
    """Assign tables, or ranges of their rows, to ranks.

    Args:
        tables: All tables.
        how: `tables`: whole tables, bytes balanced. `rows`: every table cut into ranges of equal length. `misses`:
            tables with more misses than a rank's share cut into ranges of equal misses, others whole, misses balanced.
        ranks: Number of ranks.
        misses: Expected misses of every row per batch, float64 `[rows]` by table, for `misses`; see `expected_misses`.

    Raises:
        ValueError: a rank would have no row.
    """
    totals = {table.name: float(misses[table.name].sum()) if misses else 0.0 for table in tables}
    share = sum(totals.values()) / ranks
    cuts = {
        table.name: _cuts(table.num_embeddings, ranks, misses[table.name] if misses else None)
        for table in tables
        if ranks > 1 and table.num_embeddings >= ranks and (how == "rows" or totals[table.name] > share)
    }
    whole = _evenly([table for table in tables if table.name not in cuts], totals, ranks)
    layout = tuple(
        tuple(Shard(table.name, 0, table.num_embeddings) for table in whole[rank])
        + tuple(Shard(name, at[rank], at[rank + 1] - at[rank]) for name, at in cuts.items())
        for rank in range(ranks)
    )
    if not all(layout):
        raise ValueError(f"{len(tables)} tables leave some of {ranks} ranks without rows: cut tables by rows")
    return layout


def _evenly(
    tables: Sequence[EmbeddingBagConfig], misses: Mapping[str, float], ranks: int
) -> list[list[EmbeddingBagConfig]]:
    """Assign whole tables, heaviest first, each to the least loaded rank: by misses, ties by bytes."""
    given: list[list[EmbeddingBagConfig]] = [[] for _ in range(ranks)]
    held = [(0.0, 0)] * ranks

    def weight(table: EmbeddingBagConfig) -> tuple[float, int]:
        return misses[table.name], table.num_embeddings * row_bytes_of(table)

    for table in sorted(tables, key=weight, reverse=True):
        rank = held.index(min(held))
        given[rank].append(table)
        held[rank] = (held[rank][0] + weight(table)[0], held[rank][1] + weight(table)[1])
    return given


def _cuts(rows: int, ranks: int, misses: Tensor | None) -> list[int]:
    """First row of each rank's range, and the end: ranges of equal length, or of equal misses; none is empty."""
    at = [rows * rank // ranks for rank in range(ranks + 1)]
    if misses is not None:
        sums = misses.cumsum(0)
        wanted = torch.searchsorted(sums, sums[-1] * torch.arange(1, ranks, dtype=sums.dtype) / ranks).tolist()
        for rank, row in enumerate(wanted, start=1):
            at[rank] = min(max(row + 1, at[rank - 1] + 1), rows - ranks + rank)
    return at


def expected_misses(
    tables: Sequence[EmbeddingBagConfig],
    frequencies: Mapping[str, Tensor],
    *,
    cache_ratio: float,
    batch_lookups: int,
) -> dict[str, Tensor]:
    """Expected misses of each row per batch, float64 `[rows]` by table, in a cache of the most frequent rows.

    A row outside the cache is missed when a batch has it: with independent lookups, by `1 - (1 - p)^n`. `frequencies`
    are accesses per row, int64 `[rows]` by table; `batch_lookups` are ids per batch over all tables.
    """
    accesses = {table.name: frequencies[table.name].double() for table in tables}
    every = torch.cat(list(accesses.values()))
    uncached = every.numel() - int(cache_ratio * every.numel())
    least_cached = float(every.kthvalue(uncached).values) if uncached else -1.0
    total = float(every.sum())
    found = {}
    for name, counted in accesses.items():
        lookups = batch_lookups * float(counted.sum()) / max(1.0, total)
        chance = -torch.expm1(lookups * torch.log1p(-counted / counted.sum().clamp(min=1)))
        found[name] = torch.where(counted > least_cached, 0.0, chance.nan_to_num(nan=0.0))
    return found


class ShardedSystem(EmbeddingSystem):
    """Rows sharded over the ranks of the default process group, which must be initialized before.

    `forward` and `prefetch` take this rank's part of a batch, of the same length on all ranks. `load_rows` takes all
    rows on every rank and keeps this rank's. `read_rows`, `flush` and `state_dict` are collective: every rank calls
    them in the same order and gets the rows of all ranks. `memory` and `counters` are this rank's own; its lookups are
    the ids that it receives.
    """

    whole_tables: Mapping[str, str] = {}
    """Parameters, by name, with the value at which no table is cut."""

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
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        for name, value in cls.whole_tables.items():
            if spec.parameters.get(name) == value and len(spec.tables) < ranks:
                yield f"{name}={value} leaves some of {ranks} ranks without one of {len(spec.tables)} tables: cut them"
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
