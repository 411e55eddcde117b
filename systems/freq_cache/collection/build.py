"""Building the caches of a collection from its spec: one for each group of tables that share slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.contract import CacheRatio, SystemSpec, row_type_of
from systems.features import Group
from systems.freq_cache import sizing
from systems.freq_cache.cache import Cache, RowPool, Transfer
from systems.freq_cache.collection.optimizers import FusedOptimizer, group_of
from systems.freq_cache.initial_rows import first_rows_of
from systems.freq_cache.planner.planner import Planner
from systems.freq_cache.planner.policy import HALF_LIFE_SLOTS, LFU, LRFU, LRU, Policy, StaticFrequency
from systems.freq_cache.saving import commits
from systems.freq_cache.tiers import FileTier, HostTier, PinnedTier, RowLayout, SlowTier

_CHUNK_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class CacheBuilder:
    """Builds the caches of one collection.

    Attributes:
        spec: What the collection is built from.
        cache_rows: Slots of single tables that have a cache of their own, by name.
        policy: A name, or what makes a policy from the number of rows in a cache.
        directory: Of the rows, if they are kept on disk.
        seed: Of the initial rows; None: zero.
        transfer: Shared by all caches.
        writing: The thread on which rows are written back; None: the thread that moves them.
        fused_optimizer: Has the hyper-parameters of the next lookup.
    """

    spec: SystemSpec
    cache_rows: Mapping[str, int]
    policy: str | Callable[[int], Policy]
    directory: Path | None
    seed: int | None
    transfer: Transfer
    writing: Executor | None
    fused_optimizer: FusedOptimizer

    def build(self, number: int, group: Group) -> Cache:
        """The cache of a group of tables; `number` names its folder in the directory."""
        spec, fused_optimizer, cache_rows = self.spec, self.fused_optimizer, self.cache_rows
        first: EmbeddingBagConfig = group.tables[0]
        layout, optimizer = sizing.layout_of(spec, first), spec.optimizer_of(first)
        rows, slots = group.rows, sizing.slots_of(spec, group, cache_rows)
        tier = self._tier(number, group, rows, layout)

        def make_pool(slots: int) -> RowPool:
            pool = RowPool(
                slots=slots,
                layout=layout,
                table_of_feature=group.table_of_feature,
                pooling=first.pooling,
                optimizer=optimizer,
                row_type=row_type_of(first),
                device=spec.device,
            )
            pool.set_hyper_parameters(fused_optimizer.values_of(group_of(spec, first)))
            return pool

        def remedy(slots: int) -> str:
            return sizing.remedy(spec, group, slots, cache_rows)

        together = sizing.lookups_per_backward(spec)
        policy = self._policy_of(group, rows, slots)
        return Cache(
            group,
            planner=Planner(rows=rows, slots=slots, policy=policy, batch_ids=together * spec.batch_lookups),
            tier=tier,
            make_pool=make_pool,
            staging_rows=sizing.staging_rows(spec, slots),
            writing=self.writing,
            transfer=self.transfer,
            remedy=None if isinstance(spec.budget, CacheRatio) else remedy,
            lookups_per_backward=together,
        )

    def _tier(self, number: int, group: Group, rows: int, layout: RowLayout) -> SlowTier:
        directory = self.directory
        if directory is not None:
            return FileTier(
                directory / f"cache_{number}",
                rows=rows,
                layout=layout,
                initialize=self._first_rows(group),
                decided=lambda extra: extra.get("commit") == commits.read(directory),
            )
        tier = HostTier(rows=rows, layout=layout)
        if self.spec.parameters["tier"] == "pinned":
            exchanges = self.spec.parameters.get("exchange") == "device"
            tier = PinnedTier(rows, layout, self.spec.device, exchanges=exchanges)
        if self.seed is not None:
            initialize = self._first_rows(group)
            for start in range(0, rows, _CHUNK_ROWS):
                ids = torch.arange(start, min(start + _CHUNK_ROWS, rows))
                out = torch.empty(ids.numel(), layout.dim)
                initialize(ids, out)
                layout.set_weights(tier.records[start : start + _CHUNK_ROWS], out)
        return tier

    def _policy_of(self, group: Group, rows: int, slots: int) -> Policy:
        if not isinstance(self.policy, str):
            return self.policy(rows)
        if self.policy == "lru":
            return LRU()
        if self.policy == "lfu":
            return LFU(rows)
        if self.policy == "lrfu":
            return LRFU(rows, half_life=HALF_LIFE_SLOTS * slots)
        frequencies = self.spec.frequencies
        if frequencies is None:
            raise ValueError("policy=static needs the frequencies of a SystemSpec")
        return StaticFrequency([frequencies[table.name].numpy() for table in group.tables])

    def _first_rows(self, group: Group) -> Callable[[Tensor, Tensor], None]:
        names = [table.name for table in self.spec.tables]
        return first_rows_of(group.tables, seed=self.seed, streams=[names.index(table.name) for table in group.tables])


def let_go(threads: Sequence[ThreadPoolExecutor | None], caches: list[Cache]) -> None:
    """End threads and caches that nobody asks any more."""
    end(threads, caches)
    caches.clear()  # whatever still refers to the list, the rows go now


def end(threads: Sequence[ThreadPoolExecutor | None], caches: Sequence[Cache]) -> None:
    """End threads, and close what the caches hold open."""
    for thread in threads:
        with suppress(RuntimeError):  # it may be this very thread that found the collection gone
            if thread is not None:
                thread.shutdown(cancel_futures=True)
    for cache in caches:
        cache.tier.close()
