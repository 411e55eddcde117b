"""A collection's spec with its options; the slots that fit its budget and their bytes; caches built from it."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torchrec import EmbeddingBagConfig

from systems.answers import Tier
from systems.features import FeatureGroups, Group
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.cache.mover import BatchMover
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.staging import Transfer
from systems.freq_cache.initial_rows import first_rows_of
from systems.freq_cache.tiers.commits import JSON, Commits
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.ram_index import RamIndex
from systems.freq_cache.tiers.row_file import STAGING_BYTES
from systems.freq_cache.tiers.slow_tier import HostTier, PinnedTier, RowLayout, SlowTier, width_of
from systems.spec import CacheRatio, HostBytes, SystemSpec, row_type_of
from systems.threads import Worker

SLOW_ROWS = {"fp32": (None, 0.0), "fp16": (torch.float16, 2.0**-11), "int8": (torch.int8, 1 / 252)}
"""Rows in the slow tier by name: type of weights, None for that of the slots; and the maximum round-trip error of an
element, relative to its row's largest magnitude."""
SLOT_ID_BYTES = 24
"""Bytes per id on the device: its slot as int32 and as fbgemm's int64, the copy of the batch sent ahead, and the offset
of its bag."""
ROW_INDEX_BYTES = 4 + 2
"""Maximum bytes per row on the host, for its location in the index and for the policy's statistics."""
FINDING_BYTES = 4
"""Bytes per row on the host where a thread finds the distinct rows of a batch while another one plans."""
FILE_ROW_BYTES = 4 + 2
"""Bytes per row on the host, with a file tier, for its position in the file and its checksum."""
SLOT_INDEX_BYTES = 12.125
"""Bytes per slot on the host for its row, its key, pin and flags, and its entry in a queue."""
WINDOW_BYTES = 24
"""Maximum bytes per id of an announced batch on the host for its distinct rows and its plan."""
SPARE_HOST_SHARE, SPARE_HOST_BYTES = 0.03, 16 << 20
"""Share and bytes of a host budget reserved for the allocator and page tables."""
_INITIAL_BYTES = 8 << 20
"""Bytes of initial rows per write to the tier: few enough that the same memory is reused without page faults."""

_TEXT_OPTIONS = ("policy", "tier", "copy_engine", "slow_rows")


@dataclass(frozen=True, kw_only=True)
class CacheSpec(SystemSpec):
    """The spec of a collection, with its options as values; `CachedEmbeddingBagCollection` documents them."""

    policy: str | Callable[[int], Policy] = "lfu"
    look_ahead: int = 0
    lookups_per_backward: int = 1
    tier: str = "host"  # or pinned, or file
    copy_engine: str = "staged"
    slow_rows: str = "fp32"
    cache_rows: Mapping[str, int] = field(default_factory=dict)
    directory: Path | None = None
    ram_bytes: int = 0
    seed: int | None = None

    @classmethod
    def of(cls, spec: SystemSpec) -> "CacheSpec":
        """The spec of a system of the comparison, whose options are text."""
        if isinstance(spec, CacheSpec):
            return spec
        given: dict[str, Any] = {one.name: getattr(spec, one.name) for one in fields(spec)}
        given |= {name: spec.parameters[name] for name in _TEXT_OPTIONS if name in spec.parameters}
        if spec.parameters.get("levels") == "2":
            if isinstance(spec.budget, HostBytes):
                given["budget"] = replace(spec.budget, device_bytes=None)
            elif isinstance(spec.budget, CacheRatio):
                given["budget"] = replace(spec.budget, ram_ratio=0.0)
        return cls(**given, look_ahead=int(spec.parameters.get("look_ahead", "0")))

    @property
    def row_error(self) -> float:
        """Maximum error of an element of a row after a round trip to the slow tier; see `SLOW_ROWS`."""
        return SLOW_ROWS[self.slow_rows][1]


def groups_of(spec: CacheSpec) -> FeatureGroups:
    """Groups of tables that share a cache: same width, pooling, type and optimizer, and no slots of their own."""

    def key(table: EmbeddingBagConfig) -> object:
        own = table.name if table.name in spec.cache_rows else None
        return own, table.embedding_dim, table.pooling, row_type_of(table), spec.optimizer_of(table)

    return FeatureGroups(spec.tables, key=key, weighted=spec.weighted)


def layout_of(spec: CacheSpec, table: EmbeddingBagConfig) -> RowLayout:
    """Layout of a table's records in the slow tier and across the link."""
    kept = SLOW_ROWS[spec.slow_rows][0] or row_type_of(table)
    return RowLayout(table.embedding_dim, kept, spec.optimizer.state_shapes(width_of(table.embedding_dim)))


def slow_bytes(spec: CacheSpec) -> int:
    """Bytes of all rows in the slow tier, with their optimizer state."""
    return sum(int(table.num_embeddings) * layout_of(spec, table).record_bytes for table in spec.tables)


def staging_rows(spec: CacheSpec, slots: int) -> int:
    """Capacity of each staging buffer in rows: an eighth of a full working set."""
    return 1 + min(spec.batch_lookups, slots) // 8


def device_bytes(spec: CacheSpec, group: Group, slots: int) -> int:
    """Bytes of a cache on the device, without slot ids."""
    first = group.tables[0]
    columns = width_of(first.embedding_dim)
    slot_bytes = columns * row_type_of(first).itemsize + spec.optimizer.state_bytes(columns)
    return slots * slot_bytes + BatchMover.PLACES * staging_rows(spec, slots) * layout_of(spec, first).record_bytes


def ram_bytes_of(spec: CacheSpec) -> int:
    """Bytes of the level of RAM above a drive, of all caches: as asked for, or what a host budget leaves."""
    budget = spec.budget
    if isinstance(budget, CacheRatio) and budget.ram_ratio and spec.tier == "file":
        return int(budget.ram_ratio * (slow_bytes(spec) + RamIndex.BYTES * spec.rows))
    if isinstance(budget, HostBytes) and budget.device_bytes is not None:
        return max(0, int((budget.total_bytes - _beside_ram(spec)) / (1 + SPARE_HOST_SHARE)))
    return spec.ram_bytes


def _beside_ram(spec: CacheSpec) -> int:
    """Bytes of memory that caches with a level of RAM take beside it."""
    caches = sum(host_bytes(spec, group, slots_of(spec, group)) for group in groups_of(spec).groups)
    return SLOT_ID_BYTES * spec.batch_lookups + SPARE_HOST_BYTES + caches


def _slots_in_host(spec: CacheSpec) -> bool:
    """Whether the budget of slots is one of all memory."""
    return isinstance(spec.budget, HostBytes) and spec.budget.device_bytes is None


def host_bytes(spec: CacheSpec, group: Group, slots: int) -> int:
    """Bytes of a cache in memory, with a file tier: slots, index, policy, map of the file, coming batches, staging."""
    index = index_bytes(spec, group.rows, slots) + FILE_ROW_BYTES * group.rows
    window = WINDOW_BYTES * (spec.look_ahead + 2) * spec.batch_lookups * spec.lookups_per_backward
    return int((1 + SPARE_HOST_SHARE) * (index + window + 2 * STAGING_BYTES + device_bytes(spec, group, slots)))


def _bytes_of(spec: CacheSpec, group: Group, slots: int) -> int:
    """Bytes of a cache that count against the budget, without slot ids."""
    return (host_bytes if _slots_in_host(spec) else device_bytes)(spec, group, slots)


def least_bytes(spec: CacheSpec) -> int:
    """Minimum budget: one slot per cache that shares it, caches with slots of their own, and slot ids of one batch."""
    groups = groups_of(spec).groups
    caches = sum(_bytes_of(spec, group, _own_slots(spec, group) or 1) for group in groups)
    spare = SPARE_HOST_BYTES if _slots_in_host(spec) else 0
    return SLOT_ID_BYTES * spec.batch_lookups + caches + spare


def required_bytes(spec: CacheSpec) -> dict[Tier, int]:
    """Minimum bytes by tier, without those on a drive."""
    if isinstance(spec.budget, HostBytes):
        return {Tier.HOST: least_bytes(spec) if _slots_in_host(spec) else _beside_ram(spec)}
    ratio = spec.budget.ratio if isinstance(spec.budget, CacheRatio) else 0.0
    # rows in a file take disk space once they are written, and an entry in the in-memory map of the file
    in_file = spec.tier == "file"
    rows = FILE_ROW_BYTES * spec.rows + ram_bytes_of(spec) if in_file else slow_bytes(spec)
    return {Tier.DEVICE: least_bytes(spec), Tier.HOST: index_bytes(spec, spec.rows, int(spec.rows * ratio)) + rows}


def index_bytes(spec: CacheSpec, rows: int, slots: int) -> int:
    """Bytes of a cache's index and policy on the host, without some queues of fixed size."""
    per_row = ROW_INDEX_BYTES + (FINDING_BYTES if finds_apart(spec) else 0)
    return int(rows * per_row + slots * SLOT_INDEX_BYTES)


def finds_apart(spec: CacheSpec) -> bool:
    """Whether a thread finds the distinct rows of batches while another plans: beside a device, which trains faster."""
    return spec.look_ahead > 0 and spec.device.type != "cpu"


def slots_of(spec: CacheSpec, group: Group) -> int:
    """Number of slots of a cache: its own, or a ratio of its rows, or as many as fit its share of a byte budget."""
    rows, own = group.rows, _own_slots(spec, group)
    if own is not None:
        return own
    if isinstance(spec.budget, CacheRatio):
        return max(1, int(rows * spec.budget.ratio))
    given = spec.budget.device_bytes if isinstance(spec.budget, HostBytes) else None
    left = (given or spec.budget.total_bytes) - least_bytes(spec)
    room = left * rows // _sharing_rows(spec) + _bytes_of(spec, group, 1)
    return max(1, bisect_right(range(1, rows + 1), room, key=lambda slots: _bytes_of(spec, group, slots)))


def remedy(spec: CacheSpec, group: Group, slots: int) -> str:
    """Advice in messages: the setting that gives a cache this number of slots."""
    if _own_slots(spec, group) is not None:
        return f"give table {group.tables[0].name} cache_rows of at least {slots:,}"
    share = _bytes_of(spec, group, slots) - _bytes_of(spec, group, 1)
    smallest = least_bytes(spec) + -(-share * _sharing_rows(spec) // group.rows)
    return f"the smallest budget that works for it is {smallest:,} bytes ({smallest / 2**30:.3f} GiB)"


def _sharing_rows(spec: CacheSpec) -> int:
    return spec.rows - sum(int(t.num_embeddings) for t in spec.tables if t.name in spec.cache_rows)


def _own_slots(spec: CacheSpec, group: Group) -> int | None:
    own = spec.cache_rows.get(group.tables[0].name)
    return None if own is None else min(own, group.rows)


def build_cache(
    spec: CacheSpec, group: Group, number: int, *, commits: Commits | None, transfer: Transfer, writing: Worker | None
) -> Cache:
    """The cache of a group of tables, of this number in the collection. `commits`: of the directory of its rows."""
    slots, together = slots_of(spec, group), spec.lookups_per_backward
    optimizer = spec.optimizer_of(group.tables[0])
    policy = _policy(spec, group)
    tier = _tier(spec, group, policy, commits, number)

    def make_pool(slots: int) -> SlotTable:
        return SlotTable(slots=slots, layout=tier.layout, group=group, optimizer=optimizer, device=spec.device)

    ids = together * spec.batch_lookups
    try:
        return Cache(
            group,
            planner=Planner(rows=group.rows, slots=slots, policy=policy, batch_ids=ids, apart=finds_apart(spec)),
            tier=tier,
            make_pool=make_pool,
            staging_rows=staging_rows(spec, slots),
            writing=writing,
            transfer=transfer,
            remedy=None if isinstance(spec.budget, CacheRatio) else partial(remedy, spec, group),
            lookups_per_backward=together,
        )
    except BaseException:
        tier.close()
        raise


def contents_of(spec: CacheSpec, group: Group) -> JSON:
    """Description of a cache's records, tables and initial rows, for `Commits`: see `first_rows_of`."""
    layout = layout_of(spec, group.tables[0])
    tables: list[JSON] = [
        {
            "table": table.name,
            "rows": int(table.num_embeddings),
            "seed": None if spec.seed is None else int(spec.seed),
            "stream": stream,
            "between": [float(table.get_weight_init_min()), float(table.get_weight_init_max())],
        }
        for table, stream in zip(group.tables, _streams(spec, group), strict=True)
    ]
    return {"dim": int(layout.dim), "dtype": str(layout.dtype), "state": dict(layout.state), "tables": tables}


def _tier(spec: CacheSpec, group: Group, policy: Policy, commits: Commits | None, number: int) -> SlowTier:
    layout, rows = layout_of(spec, group.tables[0]), group.rows
    initialize = first_rows_of(group.tables, seed=spec.seed, streams=_streams(spec, group))
    if commits is not None:
        return FileTier(
            commits,
            number,
            rows=rows,
            layout=layout,
            initialize=initialize,
            name_of=partial(_name_of, group),
            ram_bytes=ram_bytes_of(spec) * rows // spec.rows,
            keys=policy.keys_of_evicted,
        )
    tier = HostTier(rows=rows, layout=layout)
    if spec.tier == "pinned":
        tier = PinnedTier(rows, layout, spec.device, by_kernel=spec.copy_engine == "device")
    chunk_rows = max(1, _INITIAL_BYTES // (4 * layout.dim))
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
    ends = [*accumulate(table.num_embeddings for table in group.tables)]
    table = group.tables[at := bisect_right(ends, row)]
    return f"row {row - ends[at] + table.num_embeddings} of table {table.name}"


def _policy(spec: CacheSpec, group: Group) -> Policy:
    if not isinstance(spec.policy, str):
        return spec.policy(group.rows)
    if spec.policy == "static" and spec.frequencies is not None:
        return StaticFrequency([spec.frequencies[table.name].numpy() for table in group.tables])
    return LFU(group.rows) if spec.policy == "lfu" else LRU()
