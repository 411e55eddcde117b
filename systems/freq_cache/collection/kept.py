"""Access to a collection's rows outside lookups: load, read, save and commit."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from systems.answers import Rows
from systems.contract import EmbeddingSystem
from systems.freq_cache.cache import Cache
from systems.freq_cache.collection.access import Access, one_at_a_time
from systems.freq_cache.collection.optimizers import FusedOptimizer
from systems.freq_cache.collection.pipeline import Pipeline
from systems.freq_cache.saving import checkpoint
from systems.freq_cache.saving.commits import Commits
from systems.freq_cache.saving.streamed import StreamedRows, streamed


class KeptRows(EmbeddingSystem):
    """Row access of `CachedTables` outside lookups. `CachedTables` sets the attributes.

    Attributes:
        caches: One for each group of tables that share slots; empty once the collection was closed.
        fused_optimizer: Holds the hyper-parameters.
    """

    caches: list[Cache]
    fused_optimizer: FusedOptimizer
    _access: Access
    _cache_of_table: Mapping[str, Cache]
    _commits: Commits | None
    _pipeline: Pipeline

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
        self._commits.commit(self.fused_optimizer.hyper)

    def optimizer_steps(self, table: str) -> int:
        return self._cache_of_table[table].pool.steps

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        self._cache_of_table[table].pool.steps = steps
