"""The cache as a module: a drop-in for torchrec's `EmbeddingBagCollection`."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from systems.answers import Anatomy, Counters, Placement, Purpose, Rows, Support, Tier, Verdict, total_of
from systems.contract import EmbeddingSystem
from systems.freq_cache import arguments, sizing
from systems.freq_cache.build import CacheBuilder
from systems.freq_cache.cache import Cache, checked
from systems.freq_cache.fused_optimizer import FusedOptimizer
from systems.freq_cache.pipeline import Pipeline
from systems.freq_cache.planner.policy import Policy
from systems.freq_cache.saving import checkpoint
from systems.freq_cache.saving.commits import Commits
from systems.freq_cache.traffic import counters_of
from systems.freq_cache.transfer import Transfer
from systems.spec import SparseOptimizer, SystemSpec
from systems.tbe import ROW_TYPES
from systems.tbe_system import fbgemm_support

Batch = TypeVar("Batch")


class CachedEmbeddingBagCollection(EmbeddingSystem):
    """All rows in a slow tier, the hot ones in device slots. Trains exactly as tables that fit would.

    Optimizer state moves with its row, only changed rows are written back, and no index lives on the device. Announce
    coming batches with `prefetch`, up to `look_ahead` of them beyond the one in hand: they are planned on a thread,
    their rows are read while the batch before them trains, and no row that they need leaves for one that they do not.
    A batch that nobody announced is served all the same. With `slow_rows` other than fp32 it trains approximately.

    The update of the rows happens inside backward, by `optimizer`: no other optimizer must see them, and
    `parameters()` does not show them. `state_dict()` has the keys of an `EmbeddingBagCollection`, and the optimizer
    state beside them. `fused_optimizer` is for learning-rate schedules.

    Args:
        tables: As for an `EmbeddingBagCollection`: SUM or MEAN pooling, fp32 or fp16, widths that are multiples of 4.
        optimizer: SGD, Adagrad, row-wise Adagrad, on CUDA also Adam.
        cache_ratio: Share of all rows that have a slot. Give this, or `device_bytes`, or `host_bytes`.
        device_bytes: What rows, optimizer state and staging may take on the device. A batch with more distinct rows
            than fit is refused; under a ratio it is looked up beside the cache, slower.
        host_bytes: With `directory`, on a CPU: what rows may take of memory in all, slots, index, policy, map of the
            file and staging together.
        cache_rows: Slots of single tables that are to have a cache of their own, by name. The others share theirs.
        policy: What leaves of the rows that no announced batch needs: `static`, the rows least frequent by
            `frequencies`; `lfu`, those used least so far; `lru`, those not used for longest; or one of your own,
            made from the number of rows in a cache.
        look_ahead: Batches that may be announced beyond the one in hand, 0 to 64.
        frequencies: Accesses per row in the training data, int64 `[rows]` by table name. Policy `static` needs them.
        is_weighted: Batches carry per-sample weights; SUM pooling only.
        device: Where lookups compute.
        batch_lookups: Ids per batch, about; bounds the staging.
        directory: Keep the rows on disk, in this directory, instead of in host memory. If it holds committed
            rows, training resumes from them.
        pinned: Keep the rows in page-locked host memory, taken at once, which a CUDA device reads by itself.
        slow_rows: What rows of fp32 are kept as in the slow tier, `fp32`, `fp16` or `int8`; all else stays fp32. A row
            is rounded when it is loaded, and when it leaves changed or is flushed. A flush rounds its slot too:
            reading or saving rows rounds those that changed.
        seed: Of the initial rows, uniform in +-1/sqrt(rows); None: zero.

    Raises:
        ValueError: the tables or arguments do not go together; the message says what to change.
    """

    ids_on_host = True
    row_types = frozenset(ROW_TYPES)
    takes_weights = True

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        *,
        optimizer: SparseOptimizer,
        cache_ratio: float | None = None,
        device_bytes: int | None = None,
        host_bytes: int | None = None,
        cache_rows: Mapping[str, int] | None = None,
        policy: str | Callable[[int], Policy] = "lfu",
        look_ahead: int = 0,
        frequencies: Mapping[str, Tensor] | None = None,
        is_weighted: bool = False,
        device: torch.device | str = "cpu",
        batch_lookups: int = 1 << 16,
        directory: Path | str | None = None,
        pinned: bool = False,
        slow_rows: str = "fp32",
        seed: int | None = 0,
    ) -> None:
        spec = arguments.specification(
            tables,
            optimizer=optimizer,
            cache_ratio=cache_ratio,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            policy=policy,
            look_ahead=look_ahead,
            frequencies=frequencies,
            is_weighted=is_weighted,
            device=device,
            batch_lookups=batch_lookups,
            directory=directory,
            pinned=pinned,
            slow_rows=slow_rows,
            seed=seed,
        )
        super().__init__(spec)
        own_rows = dict(cache_rows or {})
        arguments.check_own_rows(own_rows, spec)
        if policy == "static":
            arguments.check_frequencies(frequencies or {}, spec.tables)
        if seed is not None:
            arguments.check_first_rows(spec.tables)
        self._look_ahead = look_ahead
        self._directory = None if directory is None else Path(directory)
        self._groups = sizing.groups_of(spec, own_rows)
        self._planning, self._writing = (
            ThreadPoolExecutor(1, thread_name_prefix=f"cache-{task}") if look_ahead else None
            for task in ("planning", "writing")
        )
        # nothing below refers back to the collection, so that its files and threads go as soon as it does
        self._caches = caches = list[Cache]()

        def set_hyper_parameters(values: Mapping[str, float]) -> None:
            for cache in caches:
                cache.set_hyper_parameters(values)

        chosen = {name: getattr(optimizer, name) for name in ("lr", "eps", "beta1", "beta2")}
        self.fused_optimizer = FusedOptimizer(chosen, set_hyper_parameters)
        weakref.finalize(self, _let_go, (self._planning, self._writing), caches)
        builder = CacheBuilder(
            spec=spec,
            cache_rows=own_rows,
            policy=policy,
            directory=self._directory,
            seed=seed,
            transfer=Transfer(spec.device),
            writing=self._writing,
            fused_optimizer=self.fused_optimizer,
        )
        try:
            for number, group in enumerate(self._groups.groups):
                caches.append(builder.build(number, group))
            self._commits = None if self._directory is None else Commits(self._directory, caches)
            self.fused_optimizer.param_groups[0].update(self._commits.hyper if self._commits else {})
        except BaseException:
            self.close()
            raise
        self._cache_of_table = {name: cache for cache in caches for name in cache.tables}
        groups = self._groups
        self._pipeline = Pipeline(
            caches, split=lambda batch: groups.split(checked(batch)), look_ahead=look_ahead, executor=self._planning
        )

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return sizing.required_bytes(spec)

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        refused = arguments.refused(spec)
        refusal = Support(Verdict.UNSUPPORTED, refused) if refused else fbgemm_support(spec)
        return super().support(spec) if refusal.verdict is Verdict.YES else refusal

    @property
    def look_ahead(self) -> int:
        return self._look_ahead

    @property
    def exact(self) -> bool:
        return not self.row_error

    @property
    def row_error(self) -> float:
        return sizing.ROW_ERROR[self.spec.parameters["slow_rows"]]

    @property
    def placement(self) -> Placement:
        on_cuda = self._caches[0].pool.weights.device.type == "cuda"
        fast, slow = "device" if on_cuda else "RAM", "file" if self._directory else "host" if on_cuda else "RAM"
        # two tiers of the same RAM move real bytes, but no link is crossed: nothing to rank against
        return Placement(
            label=f"{slow} + {fast} slots" if fast != slow else "RAM + slots in RAM", offloads=fast != slow
        )

    @property
    def caches(self) -> Sequence[Cache]:
        """One for each group of tables that share slots."""
        return self._caches

    def announced(
        self, batches: Iterable[Batch], features: Callable[[Batch], KeyedJaggedTensor] = lambda batch: cast(Any, batch)
    ) -> Iterator[Batch]:
        """The same batches, each announced as early as `look_ahead` allows. Look up each before taking the next.

        Args:
            batches: What is trained on, as `KeyedJaggedTensor` or anything that holds one.
            features: Finds it in a batch; it must be the very object that will be looked up.
        """
        waiting: deque[Batch] = deque()
        for batch in batches:
            waiting.append(batch)
            if self._look_ahead:
                self.prefetch(features(batch))
            if len(waiting) > self._look_ahead:
                yield waiting.popleft()
        yield from waiting

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a coming batch: the very object that `forward` will get, in order, no more than `look_ahead` ahead.

        Under `torch.no_grad()` it announces a batch that is not to be trained.

        Raises:
            RuntimeError: that many are announced already, or the collection was built with `look_ahead=0`.
        """
        if not self._look_ahead:
            raise RuntimeError("the cache was built with look_ahead=0: give look_ahead to announce batches")
        if self._pipeline.announced > self._look_ahead:
            raise RuntimeError(
                f"{self._pipeline.announced} batches are announced and not looked up, with look_ahead="
                f"{self._look_ahead}: look up the first of them, or build with more"
            )
        for cache in self._caches:
            cache.warm_up()
        self._pipeline.announce(features)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        for cache in self._caches:
            cache.warm_up()
        self.fused_optimizer.pass_on()
        moved, parts = self._pipeline.move(features)
        pooled = [
            cache.look_up(planned, part.weights_or_none())
            for cache, planned, part in zip(self._caches, moved, parts, strict=True)
        ]
        return self._groups.join(pooled)

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        self._pipeline.withdraw()
        cache = self._cache_of_table[table]
        cache.load(table, start, cache.tier.layout.pack(rows))

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.flush()
        return self._cache_of_table[table].read(table, ids)

    def flush(self) -> None:
        """Write every changed row to the slow tier, which is complete then. What is announced stays announced.

        Raises:
            WriteBackFailed, OSError: the slow tier failed; nothing is lost, and the same call may be repeated.
        """
        self._pipeline.withdraw()
        for cache in self._caches:
            cache.flush()

    def save(self, directory: Path | str) -> None:
        """Write all rows, their optimizer state and the hyper-parameters to a directory, all or nothing.

        Training goes on from it bit for bit, in a collection of the same tables and optimizer, whatever its cache
        size, policy, look-ahead and slow tier (with `slow_rows`, as long as rows leave their slots at the same steps).
        What is announced stays announced.

        Raises:
            OSError: it cannot be written; what the directory held before is still there.
        """
        self.fused_optimizer.pass_on()
        self.flush()
        checkpoint.save(Path(directory), self._cache_of_table, hyper=self.fused_optimizer.hyper)

    def load(self, directory: Path | str) -> None:
        """Resume from what `save` wrote.

        Raises:
            FileNotFoundError: the directory holds no checkpoint.
            ValueError: it is of other tables or another optimizer, or damaged; nothing was changed then.
        """
        self._pipeline.withdraw()
        hyper = checkpoint.load(Path(directory), self._cache_of_table)
        self.fused_optimizer.param_groups[0].update(hyper)

    def commit(self) -> None:
        """Make the rows as they are now what the directory holds when it is opened next, after a crash too.

        Raises:
            RuntimeError: the rows are not kept in a directory; use `save`.
            OSError: it cannot be written; the directory opens as it was at the last commit.
        """
        if self._commits is None:
            raise RuntimeError("the rows are in host memory: use save(), or build with a directory")
        self.fused_optimizer.pass_on()
        self.flush()
        self._commits.commit(self.fused_optimizer.hyper)

    def close(self) -> None:
        """End the threads and release the directory; what was not committed is lost. Ends the use of the collection."""
        _end((self._planning, self._writing), self._caches)

    def set_learning_rate(self, lr: float) -> None:
        self.fused_optimizer.param_groups[0]["lr"] = lr

    def optimizer_steps(self, table: str) -> int:
        return self._cache_of_table[table].pool.steps

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        self._cache_of_table[table].pool.steps = steps

    def memory(self) -> Anatomy:
        shared = {
            (Tier.DEVICE, Purpose.INDEX): 0,
            (Tier.DEVICE, Purpose.STAGING): sizing.SLOT_ID_BYTES * self.spec.batch_lookups,
        }
        return total_of([shared, *(cache.memory() for cache in self._caches)])

    def counters(self) -> Counters:
        return counters_of([(cache.traffic, cache.tier.layout.record_bytes) for cache in self._caches])

    def reset_counters(self) -> None:
        for cache in self._caches:
            cache.traffic = type(cache.traffic)()

    def count_traffic(self, enabled: bool) -> None:
        for cache in self._caches:
            cache.count_by_table = enabled


def _let_go(threads: Sequence[ThreadPoolExecutor | None], caches: list[Cache]) -> None:
    _end(threads, caches)
    caches.clear()  # whatever still refers to the list, the rows go now


def _end(threads: Sequence[ThreadPoolExecutor | None], caches: Sequence[Cache]) -> None:
    for thread in threads:
        with suppress(RuntimeError):  # it may be this very thread that found the collection gone
            if thread is not None:
                thread.shutdown(cancel_futures=True)
    for cache in caches:
        cache.tier.close()
