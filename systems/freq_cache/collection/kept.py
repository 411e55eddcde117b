"""The rows of a collection outside training: loaded, read, saved and committed."""

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
    """What `CachedTables` does with rows when it does not look them up. It has the attributes made.

    Attributes:
        caches: One for each group of tables that share slots; empty once the collection was closed.
        fused_optimizer: Has the hyper-parameters.
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
        """Write every changed row to the slow tier, which is complete then. What is announced stays announced.

        Raises:
            WriteBackFailed, OSError: nothing is lost, and the same call may be repeated.
        """
        self._pipeline.withdraw()
        for cache in self.caches:
            cache.flush()

    @one_at_a_time
    def save(self, directory: Path | str) -> None:
        """Write all rows, their optimizer state and the hyper-parameters to a directory, all or nothing.

        Training goes on from it bit for bit, in a collection of the same tables and optimizer, whatever its cache
        size, policy, look-ahead and slow tier (with `slow_rows`, as long as rows leave their slots at the same steps).
        What is announced stays announced.

        Raises:
            OSError: it cannot be written; what the directory held before is still there.
        """
        self.flush()
        checkpoint.save(Path(directory), self._cache_of_table, hyper=self.fused_optimizer.hyper)

    @one_at_a_time
    def load(self, directory: Path | str) -> None:
        """Resume from what `save` wrote.

        Raises:
            FileNotFoundError, ValueError: there is none, or it is damaged, or of other tables or another optimizer.
            OSError: rows cannot be read or written. Only then were some changed, and nothing goes on before a new load.
        """
        self._pipeline.withdraw()
        saved = checkpoint.load(Path(directory), self._cache_of_table, hyper=self.fused_optimizer.hyper)
        self.fused_optimizer.restore(saved)

    @one_at_a_time
    def streamed_state_dict(self) -> dict[str, StreamedRows]:
        """`state_dict()` for `torch.distributed.checkpoint`, which reads and writes its entries some rows at a time.

        Save it as it is. Load it with `planner=RowLoadPlanner()`, or the entries of others beside it alone are loaded.
        What is announced stays announced.
        """
        self._pipeline.withdraw()
        return streamed(self._cache_of_table, prefix=self.rows_key, read_rows=self.read_rows, load_rows=self.load_rows)

    @one_at_a_time
    def commit(self) -> None:
        """Make the rows as they are now what the directory holds when it is opened next, after a crash too.

        Raises:
            RuntimeError: the rows are not kept in a directory; use `save`.
            OSError: it cannot be written; the directory opens as it was at the last commit.
        """
        if self._commits is None:
            raise RuntimeError("the rows are in host memory: use save(), or build with a directory")
        self.flush()
        self._commits.commit(self.fused_optimizer.hyper)

    def optimizer_steps(self, table: str) -> int:
        return self._cache_of_table[table].pool.steps

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        self._cache_of_table[table].pool.steps = steps
