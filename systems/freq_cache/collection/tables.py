"""What the pooled and the sequence form of the cache share: how they are built, told of batches, read and saved."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.answers import Anatomy, Counters, Placement, Purpose, Rows, Support, Tier, Verdict, total_of
from systems.contract import EmbeddingSystem
from systems.freq_cache import sizing
from systems.freq_cache.cache import Cache, Transfer, counters_of
from systems.freq_cache.collection import arguments
from systems.freq_cache.collection.batches import announced, parts_on_host
from systems.freq_cache.collection.build import CacheBuilder, end, let_go
from systems.freq_cache.collection.optimizers import FusedOptimizer, group_of
from systems.freq_cache.collection.pipeline import Pipeline
from systems.freq_cache.planner.policy import Policy
from systems.freq_cache.saving import checkpoint
from systems.freq_cache.saving.commits import Commits
from systems.freq_cache.saving.streamed import StreamedRows, streamed
from systems.spec import SparseOptimizer, SystemSpec
from systems.tbe import CUDA_ROW_TYPES
from systems.tbe_system import fbgemm_support

Batch = TypeVar("Batch")


class CachedTables(EmbeddingSystem):
    """Tables whose rows are in a slow tier, the hot ones in device slots. `CachedEmbeddingBagCollection` has the words.

    Subclasses say what comes out of a lookup.
    """

    ids_on_host = True
    row_types = frozenset(CUDA_ROW_TYPES)
    takes_weights = True
    like_torchrec = True

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
        pinned: bool = False,
        exchange: str = "staged",
        slow_rows: str = "fp32",
        seed: int | None = 0,
    ) -> None:
        look_ahead = arguments.usual_look_ahead(device) if look_ahead is None else look_ahead
        spec = arguments.specification(
            tables,
            optimizer=optimizer,
            optimizer_kwargs=optimizer_kwargs or {},
            table_kwargs=table_kwargs or {},
            cache_ratio=cache_ratio,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            policy=policy,
            look_ahead=look_ahead,
            lookups_per_backward=lookups_per_backward,
            frequencies=frequencies,
            is_weighted=is_weighted,
            device=device,
            batch_lookups=batch_lookups,
            directory=directory,
            pinned=pinned,
            exchange=exchange,
            slow_rows=slow_rows,
        )
        super().__init__(spec)
        own_rows = dict(cache_rows or {})
        arguments.check(spec, own_rows, seed)
        self._look_ahead = look_ahead
        self._directory = None if directory is None else Path(directory)
        self._groups = sizing.groups_of(spec, own_rows)
        self._planning, self._writing = (
            ThreadPoolExecutor(1, thread_name_prefix=f"cache-{task}") if look_ahead else None
            for task in ("planning", "writing")
        )
        # nothing below refers back to the collection, so that its files and threads go as soon as it does
        self.caches = caches = list[Cache]()  # one for each group of tables that share slots

        def set_hyper_parameters(group: str, values: Mapping[str, float]) -> None:
            for cache in caches:
                if group_of(spec, cache.group.tables[0]) == group:
                    cache.set_hyper_parameters(values)

        self.fused_optimizer = FusedOptimizer(spec, set_hyper_parameters)
        self._transfer = Transfer(spec.device)
        weakref.finalize(self, let_go, (self._planning, self._writing), caches)
        builder = CacheBuilder(
            spec=spec,
            cache_rows=own_rows,
            policy=policy,
            directory=self._directory,
            seed=seed,
            transfer=self._transfer,
            writing=self._writing,
            fused_optimizer=self.fused_optimizer,
        )
        try:
            with torch.device("cpu"):  # rows are real where the model around them is built on meta
                for number, group in enumerate(self._groups.groups):
                    caches.append(builder.build(number, group))
            self._commits = None if self._directory is None else Commits(self._directory, caches)
            self.fused_optimizer.restore(self._commits.hyper if self._commits else {})
        except BaseException:
            self.close()
            raise
        self._cache_of_table = {name: cache for cache in caches for name in cache.tables}
        self._parts = partial(parts_on_host, self._groups, self._transfer)
        self._pipeline = Pipeline(caches, split=self._parts, look_ahead=look_ahead, executor=self._planning)

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
        on_cuda = self.caches[0].pool.weights.device.type == "cuda"
        fast, slow = "device" if on_cuda else "RAM", "file" if self._directory else "host" if on_cuda else "RAM"
        # two tiers of the same RAM move real bytes, but no link is crossed: nothing to rank against
        label = f"{slow} + {fast} slots" if fast != slow else "RAM + slots in RAM"
        return Placement(label=label, offloads=fast != slow)

    @property
    def device(self) -> torch.device:
        """Where lookups compute."""
        return self.spec.device

    def announced(
        self, batches: Iterable[Batch], features: Callable[[Batch], KeyedJaggedTensor] = lambda batch: cast(Any, batch)
    ) -> Iterator[Batch]:
        """The same batches, each announced as early as `look_ahead` allows. Look them up in this order.

        Whoever takes them may be some batches ahead of the lookups, as torchrec's `TrainPipelineSparseDist` is.

        Args:
            batches: What is trained on, as `KeyedJaggedTensor` or anything that holds one.
            features: Finds it in a batch.
        """

        def announce(batch: Batch) -> bool:
            if 0 < self._look_ahead < self._pipeline.announced:
                return False
            if self._look_ahead:
                self.prefetch(features(batch))
            return True

        return announced(batches, announce, look_ahead=self._look_ahead)

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a coming batch, in order, no more than `look_ahead` ahead. `forward` knows it by its ids.

        Under `torch.no_grad()` it announces a batch that is not to be trained. Where nothing is to enter, it does
        nothing: see `forward`.

        Raises:
            RuntimeError: that many are announced already, or the collection was built with `look_ahead=0`.
        """
        if self._infers:
            return
        if not self._look_ahead:
            raise RuntimeError("the cache was built with look_ahead=0: give look_ahead to announce batches")
        if self._pipeline.announced > self._look_ahead:
            raise RuntimeError(
                f"{self._pipeline.announced} batches are announced and not looked up, with look_ahead="
                f"{self._look_ahead}: look up the first of them, or build with more"
            )
        for cache in self.caches:
            cache.warm_up()
        self._pipeline.announce(features)

    @property
    def _infers(self) -> bool:
        """Whether lookups leave the caches as they are: after `eval()`, under `torch.no_grad()`."""
        return not self.training and not torch.is_grad_enabled()

    def _look_up(self, features: KeyedJaggedTensor) -> list[Tensor]:
        """What each cache has for a batch, fp32: pooled rows `[batch, features * dim]`, or a row per id `[n, dim]`."""
        if self._infers:
            parts = self._parts(features)
            self._pipeline.withdraw(before_lookup=True)
            return [cache.infer(part) for cache, part in zip(self.caches, parts, strict=True)]
        for cache in self.caches:
            cache.warm_up()
        self.fused_optimizer.pass_on()
        moved, parts = self._pipeline.move(features)
        return [
            cache.look_up(planned, part.weights_or_none())
            for cache, planned, part in zip(self.caches, moved, parts, strict=True)
        ]

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        self._pipeline.withdraw()
        cache = self._cache_of_table[table]
        cache.load(table, start, cache.tier.layout.pack(rows))

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        self.flush()
        return self._cache_of_table[table].read(table, ids)

    def flush(self) -> None:
        """Write every changed row to the slow tier, which is complete then. What is announced stays announced.

        Raises:
            WriteBackFailed, OSError: the slow tier failed; nothing is lost, and the same call may be repeated.
        """
        self._pipeline.withdraw()
        for cache in self.caches:
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
        hyper = checkpoint.load(Path(directory), self._cache_of_table, hyper=self.fused_optimizer.hyper)
        self.fused_optimizer.restore(hyper)

    def streamed_state_dict(self) -> dict[str, StreamedRows]:
        """`state_dict()` for `torch.distributed.checkpoint`, which reads and writes its entries some rows at a time.

        Save it as it is. Load it with `planner=RowLoadPlanner()`, or the entries of others beside it alone are loaded.
        What is announced stays announced.
        """
        self._pipeline.withdraw()
        return streamed(self._cache_of_table, prefix=self.rows_key, flush=self.flush)

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
        end((self._planning, self._writing), self.caches)

    def set_learning_rate(self, lr: float) -> None:
        group, *others = self.fused_optimizer.param_groups
        if others:
            raise ValueError("tables have hyper-parameters of their own: set them in fused_optimizer.param_groups")
        group["lr"] = lr

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        rows = torch.empty(0, device=self.spec.device)
        moved = fn(rows)
        if (moved.device, moved.dtype) != (rows.device, rows.dtype):
            raise RuntimeError(
                f"the rows of a cache stay on {rows.device} in the data_type of their tables: build the collection "
                "with the device and tables that you want, and move the other modules"
            )
        return cast(Self, super()._apply(fn, recurse))  # type: ignore[no-untyped-call]

    def optimizer_steps(self, table: str) -> int:
        return self._cache_of_table[table].pool.steps

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        self._cache_of_table[table].pool.steps = steps

    def memory(self) -> Anatomy:
        shared = {
            (Tier.DEVICE, Purpose.INDEX): 0,
            (Tier.DEVICE, Purpose.STAGING): sizing.SLOT_ID_BYTES * self.spec.batch_lookups,
        }
        return total_of([shared, *(cache.memory() for cache in self.caches)])

    def counters(self) -> Counters:
        return counters_of([(cache.traffic, cache.tier.layout.record_bytes) for cache in self.caches])

    def reset_counters(self) -> None:
        for cache in self.caches:
            cache.traffic = type(cache.traffic)()

    def count_traffic(self, enabled: bool) -> None:
        for cache in self.caches:
            cache.count_by_table = enabled
