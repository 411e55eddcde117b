"""The cache as modules: drop-ins for torchrec's `EmbeddingBagCollection` and `EmbeddingCollection`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.fx import Proxy, Tracer
from torchrec import EmbeddingBagConfig, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor, KeyedTensor, PoolingType
from torchrec.modules.embedding_modules import get_embedding_names_by_table

from systems.answers import Rows
from systems.freq_cache import checkpoint
from systems.freq_cache.access import one_at_a_time
from systems.freq_cache.base import CachedTables
from systems.freq_cache.checkpoint import StreamedRows, streamed
from systems.freq_cache.tiers.commits import JSON
from systems.freq_cache.tiers.file import FileTier
from systems.spec import SystemSpec


class SavedTables(CachedTables):
    """`CachedTables` with access to their rows outside of lookups: loading, reading, saving, committing."""

    @one_at_a_time
    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        self._pipeline.withdraw()
        cache = self._cache_of_table[table]
        cache.load(table, start, cache.tier.layout.pack(rows))

    @one_at_a_time
    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        self.flush()
        return self._cache_of_table[table].read(table, ids)

    @one_at_a_time
    def flush(self) -> None:
        """Write every changed row to the slow tier, which is then up to date. Announced batches stay announced.

        Raises:
            WriteBackFailed, OSError: nothing is lost, and the same call may be repeated.
        """
        self._pipeline.withdraw()
        for cache in self.caches:
            cache.flush()

    @one_at_a_time
    def save(self, directory: Path | str) -> None:
        """Write all rows, their optimizer state and the hyper-parameters to a directory, all or nothing.

        Training continues from it bit for bit, in a collection of the same tables and optimizer, whatever its cache
        size, policy, look-ahead and slow tier (with `slow_rows`, as long as rows are evicted at the same steps).
        Announced batches stay announced.

        Raises:
            OSError: it cannot be written; the directory keeps its previous content.
        """
        self.flush()
        checkpoint.save(Path(directory), self._cache_of_table, hyper=self.fused_optimizer.hyper)

    @one_at_a_time
    def load(self, directory: Path | str) -> None:
        """Load a checkpoint of `save`.

        Raises:
            FileNotFoundError, ValueError: there is none, or it is damaged, or of other tables or another optimizer.
            OSError: rows cannot be read or written. Only then some were changed, and lookups fail until a new load.
        """
        self._pipeline.withdraw()
        saved = checkpoint.load(Path(directory), self._cache_of_table, hyper=self.fused_optimizer.hyper)
        self.fused_optimizer.restore(saved)

    @one_at_a_time
    def streamed_state_dict(self) -> dict[str, StreamedRows]:
        """`state_dict()` for `torch.distributed.checkpoint`, which reads and writes its entries some rows at a time.

        Save it unchanged. Load it with `planner=RowLoadPlanner()`; other planners load none of its entries.
        Announced batches stay announced.
        """
        self._pipeline.withdraw()
        return streamed(self._cache_of_table, prefix=self.rows_key, read_rows=self.read_rows, load_rows=self.load_rows)

    @one_at_a_time
    def commit(self) -> None:
        """Commit the current rows: the directory has them when it is next opened, also after a crash.

        Raises:
            RuntimeError: the rows are not kept in a directory; use `save`.
            OSError: the commit cannot be written; the directory opens in the state of the last commit.
        """
        if self._commits is None:
            raise RuntimeError("the rows are in host memory: use save(), or build with a directory")
        self.flush()
        saves = [cast(FileTier, cache.tier).save_map for cache in self.caches]  # rows in a directory have no other tier
        steps: list[JSON] = [cache.pool.steps for cache in self.caches]
        self._commits.commit(saves, {"hyper": {**self.fused_optimizer.hyper}, "steps": steps})

    def optimizer_steps(self, table: str) -> int:
        return self._cache_of_table[table].pool.steps

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        self._cache_of_table[table].pool.steps = steps


class CachedEmbeddingBagCollection(SavedTables):
    """All rows in a slow tier, hot rows in device slots. Training is exact, as with tables that fit on the device.

    Optimizer state moves with its row, only changed rows are written back, and there is no index on the device.
    Announce coming batches with `prefetch`, up to `look_ahead` beyond the current one: the planning thread plans them,
    their rows are read while the previous batch trains, and rows that they need are not evicted for other rows.
    Unannounced batches are served too. With `slow_rows` other than fp32 training is approximate.

    Backward updates the rows with `optimizer`: no other optimizer must update them, and `parameters()` does not contain
    them. `state_dict()` has the keys of an `EmbeddingBagCollection`, and in addition the optimizer state.
    `fused_optimizer` is for learning-rate schedules.

    After `eval()`, under `torch.no_grad()`, lookups do not change the cache: no row is fetched into a slot or evicted,
    nothing is counted. Under `torch.no_grad()` alone rows are fetched, but not marked as changed.

    Args:
        tables: As for an `EmbeddingBagCollection`: SUM or MEAN pooling, fp32 or fp16.
        optimizer: SGD, Adagrad, row-wise Adagrad, on CUDA also Adam; as a `SparseOptimizer`, or as torch's class for it
            with `optimizer_kwargs`.
        optimizer_kwargs: Its arguments, as in `apply_optimizer_in_backward`.
        table_kwargs: Further arguments of single tables, by table name.
        cache_ratio: Share of all rows that have a slot. Give this, or `device_bytes`, or `host_bytes`.
        device_bytes: Maximum bytes of rows, optimizer state and staging on the device. A batch with more distinct rows
            than fit is refused; with a ratio it bypasses the cache, which is slower.
        host_bytes: With `directory`, on a CPU: maximum bytes of memory for rows: slots, index, policy, map of the
            file and staging.
        cache_rows: Slots of single tables with a cache of their own, by name. The other tables share slots.
        policy: Which rows to evict, among those that no announced batch needs: `static`, the least frequent by
            `frequencies`; `lfu`, the least frequently used so far; `lru`, those queued longest ago and not
            used since; or a function that makes your own policy from the number of rows in a cache.
        look_ahead: Batches that may be announced beyond the current one, 0 to 64; None: 4 on CUDA, 0 on a CPU. On a
            CPU, with rows in memory and a torch thread for every core, the training thread plans and reads rows ahead.
        lookups_per_backward: Maximum batches looked up before one backward. All their rows have slots then.
        frequencies: Accesses per row in the training data, int64 `[rows]` by table name. Policy `static` needs them.
        is_weighted: Batches carry per-sample weights; SUM pooling only.
        device: Device that computes lookups.
        batch_lookups: Approximate ids per batch; bounds the staging.
        directory: Keep the rows on disk, in this directory, instead of in host memory. If it holds committed
            rows, training resumes from them.
        ram_bytes: With `directory`: memory for rows that have left the slots, between these and the file. A row is in
            one of the two, not in both; the policy ranks it in both.
        pinned: Keep the rows in page-locked host memory, allocated at once, which a CUDA device reads directly.
        copy_engine: Write-back of pinned rows: `staged`, evicted rows are copied to the host, where a thread writes
            them to the tier; `device`, the device writes them to the tier, without a host thread.
        slow_rows: Type of fp32 rows in the slow tier, `fp32`, `fp16` or `int8`; all else stays fp32. A row is
            rounded when it is loaded, and when it is written back or flushed. A flush rounds its slot too:
            reading or saving rows rounds those that changed.
        seed: Seed of the initial rows, uniform in +-1/sqrt(rows); None: zero.

    Raises:
        ValueError: the tables or arguments do not go together; the message says what to change.
    """

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        if unpooled := [table.name for table in spec.tables if table.pooling is PoolingType.NONE]:
            yield f"it pools rows: use CachedEmbeddingCollection for {', '.join(unpooled)}"
        yield from super().refusals(spec)

    @one_at_a_time
    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        if isinstance(features, Proxy):
            return _as_leaf(self, features)
        joined = self._groups.join(self._look_up(features), features.inverse_indices_or_none())
        self._returned([joined.values()], features)
        return joined


class CachedEmbeddingCollection(SavedTables):
    """`CachedEmbeddingBagCollection` without pooling, a row for every id: replaces torchrec's `EmbeddingCollection`.

    Args:
        tables: As for an `EmbeddingCollection`, all of one width.
        need_indices: Outputs have the ids in the place of weights.
        choices: Arguments of `CachedEmbeddingBagCollection`, except `is_weighted`.

    Raises:
        ValueError: the tables or choices do not go together; the message says what to change.
    """

    rows_key = "embeddings"

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        *,
        need_indices: bool = False,
        **choices: Any,  # noqa: ANN401 - of several types
    ) -> None:
        widths = {table.name: table.embedding_dim for table in tables}
        if len(set(widths.values())) > 1:
            raise ValueError(f"tables of a sequence collection have one width, not {widths}: build one for each width")
        super().__init__([EmbeddingBagConfig(**vars(table), pooling=PoolingType.NONE) for table in tables], **choices)
        self._configs = list(tables)
        self._need_indices = need_indices

    @one_at_a_time
    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Look up the rows of a batch.

        Returns:
            A `JaggedTensor` by feature, and by `feature@table` where several tables serve one: rows fp32 `[n, dim]` on
            the device, in the order of the ids, with their lengths.

        Raises: as `CachedEmbeddingBagCollection`.
        """
        if isinstance(features, Proxy):
            traced: dict[str, JaggedTensor] = _as_leaf(self, features)
            return traced
        pieces = self._look_up(features)
        self._returned(pieces, features)
        given = features.to_dict()
        rows = self._groups.in_table_order(
            [
                piece
                for group, found in zip(self._groups.groups, pieces, strict=True)
                for piece in found.split([given[name].values().numel() for name in group.features])
            ]
        )
        asked = [given[name] for table in self.spec.tables for name in table.feature_names]
        return {
            name: JaggedTensor(
                piece,
                lengths=ids.lengths().to(piece.device),
                weights=ids.values().to(piece.device) if self._need_indices else None,
            )
            for name, piece, ids in zip(self._groups.names, rows, asked, strict=True)
        }

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """The tables, as torchrec's models ask for them."""
        return self._configs

    def embedding_names_by_table(self) -> list[list[str]]:
        """The names of outputs, table by table."""
        names: list[list[str]] = get_embedding_names_by_table(list(self.spec.tables))
        return names

    def embedding_dim(self) -> int:
        """The width of all tables."""
        width: int = self.spec.tables[0].embedding_dim
        return width

    def need_indices(self) -> bool:
        """Whether outputs have the ids in the place of weights."""
        return self._need_indices


def _as_leaf(module: nn.Module, features: Proxy) -> Any:  # noqa: ANN401 - what a trace takes for an output
    """Proxy of a module's output when `torch.fx` traces the model, as torchrec's pipelines do: the module is a leaf."""
    tracer = cast(Tracer, features.tracer)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (features,), {})
