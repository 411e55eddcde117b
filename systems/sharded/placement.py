"""Assignment of rows to ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig

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
        raise ValueError(f"{len(tables)} tables leave some of {ranks} ranks without rows: use placement=rows")
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
