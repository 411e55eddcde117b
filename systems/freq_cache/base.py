"""Base class of the pooled and the sequence collection: building, announcing batches, lookups and counters."""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, Self, SupportsIndex, TypeVar, cast

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.answers import Counters, MemoryBreakdown, MemoryUse, Placement, Tier, total_of
from systems.contract import EmbeddingSystem
from systems.fbgemm.tbe_system import fbgemm_refusals
from systems.freq_cache import arguments, sizing
from systems.freq_cache.access import Access, end, one_at_a_time
from systems.freq_cache.arguments import FusedOptimizer, sparse_optimizer
from systems.freq_cache.batches import parts_on_host
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.cache.plan import counters_of
from systems.freq_cache.cache.policy import Policy
from systems.freq_cache.cache.staging import Transfer
from systems.freq_cache.initial_rows import check_first_rows
from systems.freq_cache.pipeline import Pipeline
from systems.freq_cache.sizing import CacheSpec, build_cache, contents_of
from systems.freq_cache.tiers.commits import Commits
from systems.freq_cache.tiers.file import FileTier
from systems.spec import SparseOptimizer, SystemSpec
from systems.threads import Worker, interrupts_deferred

Batch = TypeVar("Batch")


class CachedTables(EmbeddingSystem):
    """Tables with rows in a slow tier and hot rows in device slots. `CachedEmbeddingBagCollection` documents arguments.

    Subclasses define the output of a lookup.
    """

    ids_on_host = True
    like_torchrec = True

    spec: CacheSpec
    threads: int
    """How many threads it has of its own."""

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        *,
        optimizer: SparseOptimizer | type[torch.optim.Optimizer],
        optimizer_kwargs: Mapping[str, Any] | None = None,
        table_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        cache_ratio: float | None = None,
        device_bytes: int | None = None,
        host_bytes: int | None = None,
        cache_rows: Mapping[str, int] | None = None,
        policy: str | Callable[[int], Policy] = "lfu",
        look_ahead: int | None = None,
        lookups_per_backward: int = 1,
        frequencies: Mapping[str, Tensor] | None = None,
        is_weighted: bool = False,
        device: torch.device | str = "cpu",
        batch_lookups: int = 1 << 16,
        directory: Path | str | None = None,
        ram_bytes: int = 0,
        pinned: bool = False,
        copy_engine: str = "staged",
        slow_rows: str = "fp32",
        seed: int | None = 0,
    ) -> None:
        arguments.check_types(locals())
        if pinned and directory is not None:
            raise ValueError("rows in a directory are not in host memory: give directory or pinned, not both")
        shared, single = dict(optimizer_kwargs or {}), dict(table_kwargs or {})
        self._build(
            CacheSpec(
                # one without features serves the feature of its own name, as in torchrec
                tables=tuple(replace(table, feature_names=table.feature_names or [table.name]) for table in tables),
                optimizer=sparse_optimizer(optimizer, shared),
                table_optimizers={name: sparse_optimizer(optimizer, {**shared, **own}) for name, own in single.items()},
                device=torch.device(device),
                budget=arguments.budget_of(cache_ratio=cache_ratio, device_bytes=device_bytes, host_bytes=host_bytes),
                batch_lookups=batch_lookups,
                frequencies=frequencies,
                weighted=is_weighted,
                policy=policy,
                look_ahead=arguments.usual_look_ahead(device) if look_ahead is None else look_ahead,
                lookups_per_backward=lookups_per_backward,
                tier="pinned" if pinned else "host" if directory is None else "file",
                copy_engine=copy_engine,
                slow_rows=slow_rows,
                cache_rows=cache_rows or {},
                directory=None if directory is None else Path(directory),
                ram_bytes=ram_bytes,
                seed=seed,
            )
        )

    def _build(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        arguments.check_frequencies(spec)
        check_first_rows(spec.tables, spec.seed)
        kept, look_ahead = spec.directory, spec.look_ahead
        self._groups = sizing.groups_of(spec)
        groups = self._groups.groups
        transfer, self.fused_optimizer = Transfer(spec.device), FusedOptimizer(spec)
        self._commits = None if kept is None else Commits(kept, [contents_of(spec, group) for group in groups])
        # nothing below refers back to the collection, so that its files and threads are released with it
        self.caches = caches = list[Cache]()  # one for each group of tables that share slots; none once it was closed
        self._access = access = Access()
        workers = dict[str, Worker]()
        self._end = weakref.finalize(self, end, access, workers, caches, self._commits)
        try:
            for task in _tasks_of(spec):
                workers[task] = Worker(f"cache-{task}")
            self.threads = len(workers)
            # rows are allocated also where the model around them is built on meta or in inference mode
            with torch.device("cpu"), torch.inference_mode(False):
                for number, group in enumerate(groups):
                    caches.append(
                        build_cache(
                            spec,
                            group,
                            number,
                            commits=self._commits,
                            transfer=transfer,
                            writing=workers.get("writing"),
                        )
                    )
            if self._commits is not None:
                self.fused_optimizer.restore(self._commits.extra.get("hyper", {}))
                for cache, steps in zip(caches, self._commits.extra.get("steps", []), strict=False):
                    cache.pool.steps = steps
        except BaseException:
            self.close()
            raise
        self._cache_of_table = {name: cache for cache in caches for name in cache.tables}
        self._pipeline = Pipeline(
            caches,
            split=partial(parts_on_host, self._groups, transfer),
            look_ahead=look_ahead,
            lookups_per_backward=spec.lookups_per_backward,
            finding=workers.get("finding"),
            planning=workers.get("planning"),
            sending=workers.get("sending"),
        )

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return sizing.required_bytes(CacheSpec.of(spec))

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        yield from arguments.refusals(CacheSpec.of(spec))
        yield from fbgemm_refusals(spec)
        yield from super().refusals(spec)

    @property
    def look_ahead(self) -> int:
        return self.spec.look_ahead

    @property
    def exact(self) -> bool:
        return not self.row_error

    @property
    def row_error(self) -> float:
        return self.spec.row_error

    @property
    @one_at_a_time
    def placement(self) -> Placement:
        fast = "device" if self.caches[0].pool.weights.device.type == "cuda" else "RAM"
        slow = "host" if fast == "device" else "RAM"
        tiers = [cache.tier for cache in self.caches if isinstance(cache.tier, FileTier)]
        if tiers:
            slow = "file" if all(tier.direct for tier in tiers) else "file (page cache)"
        # if both tiers are RAM, bytes are copied but cross no link: that does not count as offloading
        label = f"{slow} + {fast} slots" if fast != slow else "RAM + slots in RAM"
        return Placement(label=label, offloads=fast != slow)

    @property
    def device(self) -> torch.device:
        """Device that computes lookups."""
        return self.spec.device

    def announced(
        self, batches: Iterable[Batch], features: Callable[[Batch], KeyedJaggedTensor] = lambda batch: cast(Any, batch)
    ) -> Iterator[Batch]:
        """Yield the batches, each announced as early as `look_ahead` allows. Look them up in this order.

        The consumer may take some batches ahead of the lookups, as torchrec's `TrainPipelineSparseDist` does. Batches
        are `KeyedJaggedTensor`s, or anything from which `features` gets one. Leaving the loop early withdraws the rest.
        """
        source, waiting, announced = iter(batches), deque[Batch](), 0
        try:
            while True:
                waiting += islice(source, self.look_ahead + 1 - len(waiting))
                while self.look_ahead and announced < len(waiting) and self._pipeline.announced <= self.look_ahead:
                    self.prefetch(features(waiting[announced]))
                    announced += 1
                if not waiting:
                    return
                announced = max(announced - 1, 0)  # not later: it may be looked up before the next one is asked for
                yield waiting.popleft()
        except BaseException:  # the loop was left early, or the source failed
            self._pipeline.abandon()
            raise

    @one_at_a_time
    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a coming batch, in order, no more than `look_ahead` ahead. `forward` recognizes it by its ids.

        They must not change until then. Under `torch.no_grad()` it announces a batch that is not trained. In inference
        mode (see `forward`) it does nothing.

        Raises:
            RuntimeError: that many are announced already, or the collection was built with `look_ahead=0`.
        """
        if self._infers:
            return
        if not self.spec.look_ahead:
            raise RuntimeError("the cache was built with look_ahead=0: give look_ahead to announce batches")
        if self._pipeline.announced > self.spec.look_ahead:
            raise RuntimeError(
                f"{self._pipeline.announced} batches are announced and not looked up, with look_ahead="
                f"{self.spec.look_ahead}: look up the first of them, or build with more"
            )
        self._pipeline.warm_up()
        self._pipeline.announce(features)

    @property
    def _infers(self) -> bool:
        """Whether lookups do not change the caches: after `eval()`, under `torch.no_grad()`."""
        return not self.training and not torch.is_grad_enabled()

    def _look_up(self, features: KeyedJaggedTensor) -> list[Tensor]:
        """Look a batch up in each cache, fp32: pooled rows `[batch, features * dim]`, or a row per id `[n, dim]`."""
        if self._infers:
            parts = self._pipeline.split(features)
            self._pipeline.withdraw(before_lookup=True)
            return [cache.infer(part) for cache, part in zip(self.caches, parts, strict=True)]
        self._pipeline.in_flight.check_weights(_trains_weights(features))
        self._pipeline.warm_up()
        for cache in self.caches:
            cache.take_hyper_parameters(self.fused_optimizer.values_of(cache.group.tables[0]))
        moved, parts = self._pipeline.move(features)
        alone = not self._pipeline.in_flight.pending
        for cache, planned in zip(self.caches, moved, strict=True):
            cache.check_room(planned.plan, alone=alone)
        return [
            cache.look_up(planned, part.weights_or_none())
            for cache, planned, part in zip(self.caches, moved, parts, strict=True)
        ]

    def _returned(self, outputs: Sequence[Tensor], features: KeyedJaggedTensor) -> None:
        """Register the outputs of a lookup, from which backward reaches the rows."""
        if not self._infers:
            self._pipeline.in_flight.looked_up(outputs, weighted=_trains_weights(features))
            self._pipeline.refused = False

    def close(self) -> None:
        """Stop the threads and release the directory; uncommitted changes are lost. The collection is unusable then.

        Raises:
            RuntimeError: another thread is using the collection, or a call on this one is half-way.
        """
        if self._access.in_its_process and not self._access.closed:
            self._close()

    @one_at_a_time
    def _close(self) -> None:
        with interrupts_deferred():  # else what was not stopped and released by then would never be
            self._end()
            self._cache_of_table = {}

    _save_to_state_dict = one_at_a_time(EmbeddingSystem._save_to_state_dict)
    _load_from_state_dict = one_at_a_time(EmbeddingSystem._load_from_state_dict)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a collection has threads and files, and cannot be copied or pickled: save() it, and load() that into "
            "another one"
        )

    def set_learning_rate(self, lr: float) -> None:
        if len(self.fused_optimizer.param_groups) > 1:
            raise ValueError("tables have hyper-parameters of their own: set them in fused_optimizer.param_groups")
        self.fused_optimizer.param_groups[0]["lr"] = lr

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        moved = fn(rows := torch.empty(0, device=self.spec.device))
        if (moved.device, moved.dtype) != (rows.device, rows.dtype):
            raise RuntimeError(
                f"the rows of a cache stay on {rows.device} in the data_type of their tables: build the collection "
                "with the device and tables that you want, and move the other modules"
            )
        return cast(Self, super()._apply(fn, recurse))  # type: ignore[no-untyped-call]

    def memory(self) -> MemoryBreakdown:
        self._access.check()
        slot_ids = {(Tier.DEVICE, MemoryUse.STAGING): sizing.SLOT_ID_BYTES * self.spec.batch_lookups}
        return total_of([{(Tier.DEVICE, MemoryUse.INDEX): 0}, slot_ids, *(cache.memory() for cache in self.caches)])

    def counters(self) -> Counters:
        self._access.check()
        counted = counters_of([(cache.traffic, cache.tier.layout.record_bytes) for cache in self.caches])
        tiers = [cache.tier for cache in self.caches if isinstance(cache.tier, FileTier)]
        if not tiers:
            return counted
        from_ram = sum(tier.ram_rows_read for tier in tiers) if any(tier.ram_rows for tier in tiers) else None
        return replace(counted, rows_from_ram=from_ram, rows_from_drive=sum(tier.rows_read for tier in tiers))

    def reset_counters(self) -> None:
        for cache in self.caches:
            cache.traffic = type(cache.traffic)()
            cache.tier.ram_rows_read = cache.tier.rows_read = 0

    def count_traffic(self, enabled: bool) -> None:
        for cache in self.caches:
            cache.count_by_table = enabled


def _tasks_of(spec: CacheSpec) -> tuple[str, ...]:
    """What has a thread of its own: nothing without a look-ahead, nor where that thread would take training's core.

    Training leaves it a core where it waits for a device, and the thread needs little where it waits for a drive.
    On a CPU whose cores all are in training's OpenMP team, a thread of the cache runs where that team waits for it.
    Ranks on this machine, of which `torchrun` tells, share its cores.
    """
    idle = spec.device.type != "cpu" or spec.tier == "file"
    training = torch.get_num_threads() * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not spec.look_ahead or not (idle or training < len(os.sched_getaffinity(0))):
        return ()
    return ("finding",) * sizing.finds_apart(spec) + ("planning", "sending", "writing")


def _trains_weights(features: KeyedJaggedTensor) -> bool:
    weights = features.weights_or_none() if isinstance(features, KeyedJaggedTensor) else None  # else refused later
    return torch.is_grad_enabled() and weights is not None and weights.requires_grad
