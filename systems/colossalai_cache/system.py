"""ColossalAI's cache as a system of the comparison."""

import math
from typing import Any

from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.answers import (
    Counters,
    MemoryBreakdown,
    Placement,
    Rows,
    Support,
    Tier,
    Verdict,
    WorkingSetTooLarge,
    knowledge,
    total_of,
)
from systems.colossalai_cache.cache import BagCache, missing
from systems.contract import EmbeddingSystem
from systems.features import FeatureGroups, Group
from systems.spec import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec, row_bytes_of

_ROW_BYTES = 16
"""Bytes per row on the device for its rank and for the slot of its rank."""
_FEATURE_BYTES = 16
"""Bytes per feature on the device for the first row and the row count of its table; not part of ColossalAI's cache."""
_SLOT_BYTES = {"dataset": 8, "lfu": 16}
"""Bytes per slot on the device beyond the row, by policy: the row's rank, and with `lfu` its access count."""


class ColossalAICache(EmbeddingSystem):
    """One `CachedEmbeddingBag` for all tables of one width, concatenated as its authors do.

    All rows are on the host, copies of some in slots on the device, and an index of all of them on the device too.
    The lookup fetches missing rows and writes others back, changed or not, before it computes; nothing overlaps. A
    batch with more distinct rows than slots is refused. Call backward for a batch before the next lookup, which may
    evict its rows.

    - `policy=dataset`: rows are ranked by training frequency, and the cached rows of the largest ranks are evicted.
    - `policy=lfu`: a slot counts accesses since its row was fetched, and rows with the lowest counts are evicted. With
      frequencies, the cache starts with the most frequent rows and their counts.

    - `gradients=summed`: a row's gradients are summed before it is updated, as in all other systems here.
    - `gradients=each`: `torch.optim.SGD` takes the sparse gradient as it is, as in its authors' scripts. A row is
      rounded after each gradient: no faster, and a hot row strays by several per cent of what training changed in it.

    Other settings are those of its authors' scripts: 70 % of the slots filled at the start, frequencies with both
    policies, no buffer, pageable host memory, sparse gradients, and `torch.optim.SGD` on the slots. Optimizer state
    would belong to a slot, not to a row, so only SGD is supported.

    On a CPU stand-ins replace its CUDA calls while it is built and looked up.
    """

    about = (
        "ColossalAI's own cache, as its authors published it: rows in host memory, some in slots on the GPU, an index "
        "of all rows there too; SGD only."
    )
    variants = {"policy": ("dataset", "lfu"), "gradients": ("summed", "each")}
    bypasses = False
    shares_process = False
    plain_table = "reference"

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._groups = _groups_of(spec)
        # a tuple hides the slots from `parameters()`: a dense optimizer must not see them
        self._caches = tuple(BagCache(spec, group, _slots_of(spec, group)) for group in self._groups.groups)
        self._cache_of_table = {table.name: cache for cache in self._caches for table in cache.group.tables}
        self._steps = 0

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DEVICE: _least_device_bytes(spec), Tier.HOST: spec.row_bytes}

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        if spec.optimizer.kind is not OptimizerKind.SGD:
            return Support(
                Verdict.UNSUPPORTED,
                "ColossalAI's cache moves rows without their optimizer state: use sgd, which has none",
            )
        if spec.parameters["policy"] == "dataset" and spec.frequencies is None:
            return Support(
                Verdict.UNSUPPORTED, "policy=dataset ranks rows by id frequencies: give them, or use policy=lfu"
            )
        if absent := missing():
            # without --no-deps pip brings all that colossalai asks for, another torch too
            remedy = "run make setup, or pip install --no-deps colossalai==0.5.0 contexttimer==0.3.3"
            return Support(Verdict.UNAVAILABLE, f"not installed: {absent}; {remedy}")
        return super().support(spec)

    @property
    def prior_knowledge(self) -> str:
        known = [] if self.spec.frequencies is None else ["training frequencies"]
        return knowledge(*known, *(["the past"] if self.spec.parameters["policy"] == "lfu" else []))

    @property
    def sums_gradients(self) -> bool:
        return self.spec.parameters["gradients"] == "summed"

    @property
    def slots(self) -> int:
        return sum(cache.slots.shape[0] for cache in self._caches)

    @property
    def placement(self) -> Placement:
        # on a CPU both tiers are RAM: bytes are copied but cross no link, so it does not count as offloading
        on_cuda = self._caches[0].slots.device.type == "cuda"
        return Placement(label="host + device slots" if on_cuda else "RAM + slots in RAM", offloads=on_cuda)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        parts = self._groups.split(features)
        rows = [cache.rows_of(part) for cache, part in zip(self._caches, parts, strict=True)]
        pooled = []
        for cache, *batch in zip(self._caches, rows, parts, strict=True):
            try:
                pooled.append(cache.look_up(*batch))
            except AssertionError:
                raise WorkingSetTooLarge(self._refusal(cache, batch[0].unique().numel())) from None
        self._steps += 1
        return self._groups.join(pooled)

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        self._cache_of_table[table].load(table, start, rows.weights)

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        return Rows(self._cache_of_table[table].read(table, ids))

    def set_learning_rate(self, lr: float) -> None:
        rounded = SparseOptimizer(kind=OptimizerKind.SGD, lr=lr).lr
        for cache in self._caches:
            cache.set_learning_rate(rounded)

    def flush(self) -> None:
        for cache in self._caches:
            cache.flush()

    def memory(self) -> MemoryBreakdown:
        return total_of(cache.memory() for cache in self._caches)

    def counters(self) -> Counters:
        if not self._steps:
            return Counters(steps=0)
        counts = [cache.counts() for cache in self._caches]
        traffic: dict[str, Any] = {name: sum(count[name] for count in counts) for name in counts[0]}
        return Counters(steps=self._steps, **traffic)

    def reset_counters(self) -> None:
        self._steps = 0
        for cache in self._caches:
            cache.reset_counters()

    def _refusal(self, cache: BagCache, rows: int) -> str:
        spec, slots = self.spec, cache.slots.shape[0]
        if isinstance(spec.budget, CacheRatio):
            ratio = math.ceil(10_000 * rows / cache.group.rows) / 10_000
            smallest = f"the smallest cache ratio that works for it is {ratio:.4f}"
        else:
            share = (rows - 1) * _slot_bytes(spec, cache.group)
            needed = _least_device_bytes(spec) - (-share * spec.rows // cache.group.rows)
            smallest = f"the smallest budget that works for it is {needed:,} bytes ({needed / 2**30:.3f} GiB)"
        return (
            f"a batch has {rows:,} distinct rows, ColossalAI's cache {slots:,} slots and no way beside them: {smallest}"
        )


def _groups_of(spec: SystemSpec) -> FeatureGroups:
    """Groups of tables that share a cache: one per width."""
    return FeatureGroups(spec.tables, key=lambda table: table.embedding_dim)


def _slot_bytes(spec: SystemSpec, group: Group) -> int:
    """Device bytes of one slot."""
    return row_bytes_of(group.tables[0]) + _SLOT_BYTES[spec.parameters["policy"]]


def _least_device_bytes(spec: SystemSpec) -> int:
    """Minimum device bytes: the index of every row, and one slot for every cache."""
    groups = _groups_of(spec).groups
    index = _ROW_BYTES * spec.rows + _FEATURE_BYTES * sum(len(group.features) for group in groups)
    return index + sum(_slot_bytes(spec, group) for group in groups)


def _slots_of(spec: SystemSpec, group: Group) -> int:
    """Number of slots of a cache: a ratio of its rows, or as many as fit its share (by rows) of a byte budget."""
    rows = group.rows
    if isinstance(spec.budget, CacheRatio):
        return max(1, int(rows * spec.budget.ratio))
    share = (spec.budget.total_bytes - _least_device_bytes(spec)) * rows // spec.rows
    return min(rows, 1 + share // _slot_bytes(spec, group))
