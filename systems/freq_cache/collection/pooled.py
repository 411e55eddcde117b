"""The cache as a module: a drop-in for torchrec's `EmbeddingBagCollection`."""

from torch.fx import Proxy
from torchrec import KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.answers import Support, Verdict
from systems.freq_cache.collection.access import one_at_a_time
from systems.freq_cache.collection.base import CachedTables
from systems.freq_cache.collection.batches import as_leaf
from systems.spec import SystemSpec


class CachedEmbeddingBagCollection(CachedTables):
    """All rows in a slow tier, the hot ones in device slots. Trains exactly as tables that fit would.

    Optimizer state moves with its row, only changed rows are written back, and no index lives on the device. Announce
    coming batches with `prefetch`, up to `look_ahead` of them beyond the one in hand: they are planned on a thread,
    their rows are read while the batch before them trains, and no row that they need leaves for one that they do not.
    A batch that nobody announced is served all the same. With `slow_rows` other than fp32 it trains approximately.

    The update of the rows happens inside backward, by `optimizer`: no other optimizer must see them, and
    `parameters()` does not show them. `state_dict()` has the keys of an `EmbeddingBagCollection`, and the optimizer
    state beside them. `fused_optimizer` is for learning-rate schedules.

    After `eval()`, under `torch.no_grad()`, lookups leave the cache as it is: no row enters or leaves, nothing is
    counted. Under `torch.no_grad()` alone rows enter, and nothing is written back for it.

    Args:
        tables: As for an `EmbeddingBagCollection`: SUM or MEAN pooling, fp32 or fp16.
        optimizer: SGD, Adagrad, row-wise Adagrad, on CUDA also Adam; as a `SparseOptimizer`, or as torch's class for it
            with `optimizer_kwargs`.
        optimizer_kwargs: Its arguments, as `apply_optimizer_in_backward` takes them.
        table_kwargs: Those of single tables that differ, by table name.
        cache_ratio: Share of all rows that have a slot. Give this, or `device_bytes`, or `host_bytes`.
        device_bytes: What rows, optimizer state and staging may take on the device. A batch with more distinct rows
            than fit is refused; under a ratio it is looked up beside the cache, slower.
        host_bytes: With `directory`, on a CPU: what rows may take of memory in all, slots, index, policy, map of the
            file and staging together.
        cache_rows: Slots of single tables that are to have a cache of their own, by name. The others share theirs.
        policy: What leaves of the rows that no announced batch needs: `static`, the rows least frequent by
            `frequencies`; `lfu`, those used least so far; `lru`, those queued longest ago and not
            used since; or one of your own, made from the number of rows in a cache.
        look_ahead: Batches that may be announced beyond the one in hand, 0 to 64; None: 4 on CUDA, 0 on a CPU.
        lookups_per_backward: How many batches may be looked up before one backward. All their rows have slots then.
        frequencies: Accesses per row in the training data, int64 `[rows]` by table name. Policy `static` needs them.
        is_weighted: Batches carry per-sample weights; SUM pooling only.
        device: Where lookups compute.
        batch_lookups: Ids per batch, about; bounds the staging.
        directory: Keep the rows on disk, in this directory, instead of in host memory. If it holds committed
            rows, training resumes from them.
        pinned: Keep the rows in page-locked host memory, taken at once, which a CUDA device reads by itself.
        exchange: Of pinned rows: `staged`, those that leave are carried to the host, where a thread writes them to
            their places; `device`, the device does that too, and no thread of the host touches a row.
        slow_rows: What rows of fp32 are kept as in the slow tier, `fp32`, `fp16` or `int8`; all else stays fp32. A row
            is rounded when it is loaded, and when it leaves changed or is flushed. A flush rounds its slot too:
            reading or saving rows rounds those that changed.
        seed: Of the initial rows, uniform in +-1/sqrt(rows); None: zero.

    Raises:
        ValueError: the tables or arguments do not go together; the message says what to change.
    """

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        unpooled = [table.name for table in spec.tables if table.pooling is PoolingType.NONE]
        if unpooled:
            return Support(
                Verdict.UNSUPPORTED, f"it pools rows: use CachedEmbeddingCollection for {', '.join(unpooled)}"
            )
        return super().support(spec)

    @one_at_a_time
    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        if isinstance(features, Proxy):
            return as_leaf(self, features)
        joined = self._groups.join(self._look_up(features), features.inverse_indices_or_none())
        self._returned([joined.values()])
        return joined
