"""Building the caches of a collection from its spec: one for each group of tables that share slots."""

from functools import partial

import torch

from systems.contract import CacheRatio
from systems.features import Group
from systems.freq_cache import sizing
from systems.freq_cache.arguments import FusedOptimizer, group_of
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.staging import Transfer
from systems.freq_cache.initial_rows import first_rows_of
from systems.freq_cache.sizing import CacheSpec
from systems.freq_cache.tiers.commits import JSON, Commits
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.slow_tier import HostTier, PinnedTier, SlowTier
from systems.threads import Worker

_CHUNK_BYTES = 8 << 20
"""Bytes of initial rows per write to the tier: few enough that the same memory is reused without page faults."""


def build_cache(
    spec: CacheSpec,
    group: Group,
    *,
    number: int,
    commits: Commits | None,
    transfer: Transfer,
    writing: Worker | None,
    fused_optimizer: FusedOptimizer,
) -> Cache:
    """The cache of a group of tables.

    Args:
        spec: The collection's spec.
        group: The tables.
        number: Number of the cache.
        commits: Commits of the directory of the rows, if they are on disk.
        transfer: Shared by all caches.
        writing: The thread that writes rows back; None: the thread that moves them.
        fused_optimizer: Holds the hyper-parameters of the next lookup.
    """
    first = group.tables[0]
    slots, together = sizing.slots_of(spec, group), spec.lookups_per_backward
    policy = _policy(spec, group)
    tier = _tier(spec, group, policy, commits, number)

    def make_pool(slots: int) -> SlotTable:
        optimizer = spec.optimizer_of(first)
        return SlotTable(slots=slots, layout=tier.layout, group=group, optimizer=optimizer, device=spec.device)

    try:
        return Cache(
            group,
            planner=Planner(
                rows=group.rows,
                slots=slots,
                policy=policy,
                batch_ids=together * spec.batch_lookups,
            ),
            tier=tier,
            make_pool=make_pool,
            hyper_parameters=partial(fused_optimizer.values_of, group_of(spec, first)),
            staging_rows=sizing.staging_rows(spec, slots),
            writing=writing,
            transfer=transfer,
            remedy=None if isinstance(spec.budget, CacheRatio) else partial(sizing.remedy, spec, group),
            lookups_per_backward=together,
        )
    except BaseException:
        tier.close()
        raise


def contents_of(spec: CacheSpec, group: Group) -> JSON:
    """Description of a cache's records, tables and initial rows, for `Commits`: see `first_rows_of`."""
    layout = sizing.layout_of(spec, group.tables[0])
    tables: list[JSON] = [
        {"table": table.name, "rows": table.num_embeddings}
        | ({"seed": None} if spec.seed is None else {"seed": spec.seed, "stream": stream, "between": bounds})
        for table, stream in zip(group.tables, _streams(spec, group), strict=True)
        for bounds in [[table.get_weight_init_min(), table.get_weight_init_max()]]
    ]
    return {"dim": layout.dim, "dtype": str(layout.dtype), "state": dict(layout.state), "tables": tables}


def _tier(spec: CacheSpec, group: Group, policy: Policy, commits: Commits | None, number: int) -> SlowTier:
    layout, rows = sizing.layout_of(spec, group.tables[0]), group.rows
    initialize = first_rows_of(group.tables, seed=spec.seed, streams=_streams(spec, group))
    if spec.directory is not None and commits is not None:
        return FileTier(
            spec.directory / f"cache_{number}",
            rows=rows,
            layout=layout,
            initialize=initialize,
            saved=commits.saved[number],
            counts=commits.counts,
            name_of=partial(_name_of, group),
            ram_bytes=sizing.ram_bytes_of(spec) * rows // spec.rows,
            keys=policy.keys_of_evicted,
        )
    tier = HostTier(rows=rows, layout=layout)
    if spec.tier == "pinned":
        tier = PinnedTier(rows, layout, spec.device, by_kernel=spec.copy_engine == "device")
    chunk_rows = max(1, _CHUNK_BYTES // (4 * layout.dim))
    for start in range(0, 0 if spec.seed is None else rows, chunk_rows):
        ids = torch.arange(start, min(start + chunk_rows, rows))
        layout.set_weights(tier.records[start : start + chunk_rows], initialize(ids))
    return tier


def _streams(spec: CacheSpec, group: Group) -> list[int]:
    """Random stream of each table's initial rows: its position in the spec."""
    names = [table.name for table in spec.tables]
    return [names.index(table.name) for table in group.tables]


def _name_of(group: Group, row: int) -> str:
    """Name of a cache's row in messages."""
    for table in group.tables:
        if row < table.num_embeddings:
            break
        row -= table.num_embeddings
    return f"row {row} of table {table.name}"


def _policy(spec: CacheSpec, group: Group) -> Policy:
    if not isinstance(spec.policy, str):
        return spec.policy(group.rows)
    if spec.policy == "static" and spec.frequencies is not None:
        return StaticFrequency([spec.frequencies[table.name].numpy() for table in group.tables])
    return LFU(group.rows) if spec.policy == "lfu" else LRU()
