"""Inputs of torchrec's planner for caches, taken from miss-ratio curves.

`EmbeddingOffloadScaleupProposer` weighs cache sizes by `EmbeddingOffloadStats`: of each table a histogram of LRU stack
depths, the distinct rows of a batch, and the area under the curve. torchrec defines them and says nowhere how to get
them (torchrec 1.8, `distributed/planner/shard_estimators.py` and `proposers.py`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from suite.records.command_line import BadOption
from suite.records.measured import Model
from suite.simulate.curves import Curve, Curves, divide_greedily
from suite.simulate.options import read_input
from suite.simulate.trace import Int64s

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints

MOST_BINS = 1 << 16
"""Bins of a histogram; smaller tables have one per row, and their curves are exact."""


class OffloadStats(Model):
    """The arguments of `EmbeddingOffloadStats`."""

    cacheability: float
    """Mean miss rate over all sizes of the cache, 0 to 1."""
    expected_lookups: int
    """Distinct rows of a batch, on average."""
    mrc_hist_counts: list[int]
    """Hits by the size of the cache that they need, in equal bins from 0 to `height` slots."""
    height: int
    """Rows of the table."""


class CacheInputs(Model):
    """The arguments of `CacheParams`."""

    algorithm: Literal["LRU"] = "LRU"
    """The policy that the curves describe."""
    load_factor: float
    """Slots over rows."""
    prefetch_pipeline: bool
    """Whether rows of the next batch are fetched while one trains. The cache then holds the rows of both."""


class TableInputs(Model):
    """Inputs of the planner for one table."""

    compute_kernel: Literal["fused", "fused_uvm_caching"]
    """`fused`: it lies on the device whole."""
    pooling_factor: float
    """Ids per sample."""
    stats: OffloadStats
    cache: CacheInputs | None
    """None on the device."""


class PlannerInputs(Model):
    """Inputs of the planner for all tables, by name."""

    trace: str
    """Name of the trace."""
    batch_size: int
    """Samples of a global batch, of all ranks together."""
    slots: int | None
    """Divided among the tables; None: each has as few as its largest batch needs, for the planner to scale up."""
    tables: dict[str, TableInputs]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `suite curves --torchrec` wrote. Raises `BadOption`: there is no such file, or it is another."""
        return read_input(cls, path, remedy=f"make it with `python -m suite curves --torchrec {path}`")

    def constraints(self) -> dict[str, ParameterConstraints]:
        """For `EmbeddingShardingPlanner(constraints=...)` and the enumerator that it is given."""
        import torch
        from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.distributed.types import CacheAlgorithm, CacheParams

        made = {}
        for name, table in self.tables.items():
            params = None
            if table.cache is not None:
                arguments = table.stats.model_dump() | {"mrc_hist_counts": torch.tensor(table.stats.mrc_hist_counts)}
                cache = table.cache.model_dump() | {"algorithm": CacheAlgorithm[table.cache.algorithm]}
                params = CacheParams(**cache, stats=EmbeddingOffloadStats(**arguments))
            made[name] = ParameterConstraints(
                compute_kernels=[table.compute_kernel], pooling_factors=[table.pooling_factor], cache_params=params
            )
        return made


def planner_inputs(
    curves: Curves, *, batch_size: int, slots: int | None = None, prefetch: bool = False
) -> PlannerInputs:
    """Turn curves into what torchrec's planner asks for.

    Args:
        curves: Made with `per_table`.
        batch_size: Samples of a batch of theirs: a global batch of training.
        slots: Divide so many among the tables, where they save most. None: leave that to the planner.
        prefetch: Training prefetches; a cache then holds two batches.

    Raises:
        BadOption: there are fewer slots than the largest batches need.
    """
    batches = 2 if prefetch else 1  # whose rows a cache must hold at once
    held = [replace(curve, largest_batch=min(curve.rows, curve.least_slots * batches)) for curve in curves.tables]
    given = tuple(curve.largest_batch for curve in held)
    if slots is not None:
        if slots < sum(given):
            raise BadOption(
                f"--split: {slots:,} slots are too few for torchrec's caches: what they must hold at once are "
                f"{sum(given):,} rows, give at least as many slots{' or leave out --prefetch' if prefetch else ''}"
            )
        given = divide_greedily(held, slots, resident=True)
    tables = {}
    for curve, count in zip(curves.tables, given, strict=True):
        cache = CacheInputs(load_factor=count / curve.rows, prefetch_pipeline=prefetch)
        tables[curve.name] = TableInputs(
            compute_kernel="fused" if count >= curve.rows else "fused_uvm_caching",
            pooling_factor=curve.lookups / (curves.batches * batch_size),
            stats=offload_stats(curve, curves.batches),
            cache=None if count >= curve.rows else cache,
        )
    return PlannerInputs(trace=curves.pooled.name, batch_size=batch_size, slots=slots, tables=tables)


def offload_stats(curve: Curve, batches: int) -> OffloadStats:
    """One curve as torchrec keeps it.

    torchrec takes all sizes within a bin for the same, so a bin gets the hits of its middle size. Rows never seen
    before count in the last bin: a table with a slot for every row is on the device and misses nothing.
    """
    edges = np.ceil(np.linspace(0, curve.rows, min(curve.rows, MOST_BINS) + 1)).astype(np.int64)
    middles = (edges[:-1] + 1 + edges[1:]) // 2
    hits = curve.unique_ids - np.array([curve.misses(slots) for slots in middles.tolist()], np.int64)
    hits[-1] = curve.unique_ids
    counts: Int64s = np.diff(hits, prepend=0)
    return OffloadStats(
        cacheability=float(1 - hits.mean() / curve.unique_ids) if curve.unique_ids else 0.0,
        expected_lookups=round(curve.unique_ids / batches),
        mrc_hist_counts=counts.tolist(),
        height=curve.rows,
    )
