"""ColossalAI's `CachedEmbeddingBag`, version 0.5.0: the cache of arXiv 2208.05321 as its authors published it.

It is imported without the rest of ColossalAI, and has stand-ins for its CUDA calls on a CPU.
"""

import functools
import importlib.util
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.answers import (
    Counters,
    MemoryBreakdown,
    MemoryUse,
    Placement,
    Rows,
    Support,
    Tier,
    Verdict,
    WorkingSetTooLarge,
    knowledge,
)
from systems.contract import EmbeddingSystem
from systems.features import ConcatenatedRows, FeatureGroups
from systems.spec import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec, row_bytes_of

_ROOM = "colossalai.legacy.nn.parallel.layers.cache_embedding"
_WARM_SHARE = 0.7
"""Share of slots filled at the start: the library's default `warmup_ratio`, also in its authors' scripts."""
_ROW_BYTES = 16
"""Bytes per row on the device for its rank and for the slot of its rank."""
_FEATURE_BYTES = 16
"""Bytes per feature on the device for the first row and the row count of its table; not part of ColossalAI's cache."""
_SLOT_BYTES = {"dataset": 8, "lfu": 16}
"""Bytes per slot on the device beyond the row, by policy: the row's rank, and with `lfu` its access count."""


class ColossalAICache(EmbeddingSystem):
    """ColossalAI's own cache: rows in host memory, some in slots on the GPU, an index of all rows there too; SGD only.

    One `CachedEmbeddingBag` for all tables, concatenated as its authors do, with their index and update.

    All rows are on the host, copies of some in slots on the device, and an index of all of them on the device too.
    The lookup fetches missing rows and writes others back, changed or not, before it computes; nothing overlaps. A
    batch with more distinct rows than slots is refused. Call backward for a batch before the next lookup, which may
    evict its rows.

    - `policy=dataset`: rows are ranked by training frequency, and the cached rows of the largest ranks are evicted.
    - `policy=lfu`: a slot counts accesses since its row was fetched, and rows with the lowest counts are evicted. With
      frequencies, the cache starts with the most frequent rows and their counts.
    - `gradients=summed`: a row's gradients are summed before it is updated, as in all other systems here.
    - `gradients=each`: `torch.optim.SGD` takes the sparse gradient as it is, as in its authors' scripts. A row is
      rounded after each gradient: no faster, and a hot row strays by several per cent of what training changed in it,
      once by more than half (results/colossalai).

    Other settings are those of its authors' scripts: 70 % of the slots filled at the start, frequencies with both
    policies, no buffer, pageable host memory, sparse gradients, and `torch.optim.SGD` on the slots. Optimizer state
    would belong to a slot, not to a row, so only SGD is supported.

    A row's number is its index in the concatenated tables; its rank is its index in the array on the host.
    """

    variants = {"policy": ("dataset", "lfu"), "gradients": ("summed", "each")}
    bypasses = False
    shares_process = False
    plain_table = "reference"

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._groups = FeatureGroups(spec.tables)
        self._numbering = ConcatenatedRows(self._groups.groups[0], spec.device)
        dim, accesses = spec.tables[0].embedding_dim, spec.frequencies
        if isinstance(spec.budget, CacheRatio):
            slots = max(1, int(spec.rows * spec.budget.ratio))
        else:
            slots = min(spec.rows, 1 + (spec.budget_bytes - _least_device_bytes(spec)) // _slot_bytes(spec))
        bag, strategies = _library()
        with self._device(), redirect_stdout(io.StringIO()):  # it prints how long it took to fill the slots
            made = bag(
                spec.rows,
                dim,
                sparse=True,
                _weight=torch.zeros(spec.rows, dim),
                mode="sum",
                include_last_offset=True,
                cache_ratio=min(1.0, (slots + 0.5) / spec.rows),  # it rounds down
                ids_freq_mapping=None if accesses is None else torch.cat([accesses[name] for name in self.tables]),
                warmup_ratio=_WARM_SHARE,
                evict_strategy=strategies[spec.parameters["policy"].upper()],
            )
        # a tuple hides the slots from `parameters()`: a dense optimizer must not see them
        self._hidden = (made, made.cache_weight_mgr)
        self._optimizer = torch.optim.SGD([self._cached_rows], lr=spec.optimizer.lr)
        self._cached_rows.register_post_accumulate_grad_hook(self._update)
        self.reset_counters()

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DEVICE: _least_device_bytes(spec), Tier.HOST: spec.row_bytes}

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        if spec.optimizer.kind is not OptimizerKind.SGD:
            yield "ColossalAI's cache moves rows without their optimizer state: use sgd, which has none"
        if spec.parameters["policy"] == "dataset" and spec.frequencies is None:
            yield "policy=dataset ranks rows by id frequencies: give them, or use policy=lfu"
        yield from super().refusals(spec)

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        found = super().support(spec)
        absent = [name for name in ("colossalai", "contexttimer") if importlib.util.find_spec(name) is None]
        if found.verdict is Verdict.UNSUPPORTED or not absent:
            return found
        # without --no-deps pip brings all that colossalai asks for, another torch too
        remedy = "run make setup, or pip install --no-deps colossalai==0.5.0 contexttimer==0.3.3"
        return Support(Verdict.UNAVAILABLE, f"not installed: {' and '.join(absent)}; {remedy}")

    @property
    def prior_knowledge(self) -> str:
        known = [] if self.spec.frequencies is None else ["training frequencies"]
        return knowledge(*known, *(["the past"] if self.spec.parameters["policy"] == "lfu" else []))

    @property
    def sums_gradients(self) -> bool:
        return self.spec.parameters["gradients"] == "summed"

    @property
    def slots(self) -> int:
        return self._cached_rows.shape[0]

    @property
    def placement(self) -> Placement:
        # on a CPU both tiers are RAM: bytes are copied but cross no link, so it does not count as offloading
        on_cuda = self.spec.device.type == "cuda"
        return Placement(label="host + device slots" if on_cuda else "RAM + slots in RAM", offloads=on_cuda)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        (ordered,) = self._groups.split(features)
        rows = self._numbering.rows_of(ordered)
        bag, manager = self._hidden
        try:
            with self._device():
                pooled: Tensor = bag(rows, ordered.offsets().long())
        except AssertionError:
            raise WorkingSetTooLarge(self._refusal(rows.unique().numel())) from None
        self._hits += manager.num_hits_history[-1]
        self._misses += manager.num_miss_history[-1]
        for history in (manager.num_hits_history, manager.num_miss_history, manager.num_write_back_history):
            history.clear()  # left alone, they grow by an entry per batch
        self._steps += 1
        by_feature = pooled.view(-1, ordered.stride(), pooled.shape[1])
        return self._groups.join([by_feature.transpose(0, 1).flatten(1)])

    @torch.no_grad()
    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        first = self._numbering.first[table] + start
        ranks = self._manager.idx_map[first : first + rows.weights.shape[0]]
        self._manager.weight.index_copy_(0, ranks.cpu(), rows.weights.cpu())
        at, slots = self._cached(ranks)
        self._cached_rows.index_copy_(0, slots, rows.weights[at].to(self.spec.device))

    @torch.no_grad()
    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        ranks = self._manager.idx_map[(ids + self._numbering.first[table]).to(self.spec.device)]
        weights: Tensor = self._manager.weight.index_select(0, ranks.cpu())
        at, slots = self._cached(ranks)
        weights[at] = self._cached_rows[slots].cpu()
        return Rows(weights)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.param_groups[0]["lr"] = SparseOptimizer(kind=OptimizerKind.SGD, lr=lr).lr  # rounded to fp32

    @torch.no_grad()
    def flush(self) -> None:
        """Write every row back and empty the cache, as the library's `flush` does."""
        manager = self._manager
        misses, lookups = manager._cache_miss, manager._total_cache
        manager.flush()
        manager._cache_miss, manager._total_cache = misses, lookups  # the library's flush resets only these

    def memory(self) -> MemoryBreakdown:
        manager = self._manager
        index = [manager.idx_map, manager.inverted_cached_idx, manager.cached_idx_map, self._numbering.spans]
        counts = getattr(manager, "freq_cnter", None)  # lfu has them
        return {
            (Tier.HOST, MemoryUse.ROWS): manager.weight.nbytes,
            (Tier.DEVICE, MemoryUse.ROWS): self._cached_rows.nbytes,
            (Tier.DEVICE, MemoryUse.INDEX): sum(tensor.nbytes for tensor in (*index, counts) if tensor is not None),
        }

    def counters(self) -> Counters:
        if not self._steps:
            return Counters(steps=0)
        manager, width = self._manager, self._cached_rows.shape[1]
        return Counters(
            steps=self._steps,
            lookups=int(manager._total_cache),
            unique_ids=self._hits + self._misses,
            unique_misses=self._misses,
            lookup_misses=int(manager._cache_miss),
            rows_fetched=manager._cpu_to_cuda_numel // width,
            rows_written_back=manager._cuda_to_cpu_numel // width,
            bytes_fetched=4 * manager._cpu_to_cuda_numel,
            bytes_written_back=4 * manager._cuda_to_cpu_numel,
        )

    def reset_counters(self) -> None:
        self._steps = self._hits = self._misses = 0
        self._manager._reset_comm_stats()

    @property
    def _manager(self) -> Any:  # noqa: ANN401 - the library's, without types
        return self._hidden[1]

    @property
    def _cached_rows(self) -> nn.Parameter:
        """Copies of rows on the device, fp32 `[slots, dim]`."""
        found: nn.Parameter = self._manager.cuda_cached_weight
        return found

    def _cached(self, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (on the host) of the ranks that have slots, and these slots (on the device)."""
        slots = self._manager.inverted_cached_idx[ranks]
        at = (slots >= 0).nonzero().squeeze(1)
        return at.cpu(), slots[at]

    def _update(self, leaf: Tensor) -> None:
        """Torch's SGD on the sparse gradient: as it is, a row is rounded after each gradient; summed by slot, once."""
        if leaf.grad is None:
            return
        if self.sums_gradients:
            slots, position = leaf.grad._indices()[0].unique(return_inverse=True)
            total = torch.zeros(slots.numel(), leaf.shape[1], device=leaf.device)
            total.index_add_(0, position, leaf.grad._values())
            leaf.grad = torch.sparse_coo_tensor(
                slots.unsqueeze(0), total, leaf.shape, is_coalesced=True, check_invariants=False
            )
        self._optimizer.step()
        leaf.grad = None

    def _device(self) -> AbstractContextManager[None]:
        return _without_cuda() if self.spec.device.type == "cpu" else nullcontext()

    def _refusal(self, rows: int) -> str:
        needed = _least_device_bytes(self.spec) + (rows - 1) * _slot_bytes(self.spec)
        smallest = f"budget that works for it is {needed:,} bytes ({needed / 2**30:.3f} GiB)"
        if isinstance(self.spec.budget, CacheRatio):
            smallest = f"cache ratio that works for it is {math.ceil(10_000 * rows / self.spec.rows) / 10_000:.4f}"
        return f"a batch has {rows:,} distinct rows, ColossalAI's cache {self.slots:,} slots: the smallest {smallest}"


def _slot_bytes(spec: SystemSpec) -> int:
    """Device bytes of one slot."""
    return row_bytes_of(spec.tables[0]) + _SLOT_BYTES[spec.parameters["policy"]]


def _least_device_bytes(spec: SystemSpec) -> int:
    """Minimum device bytes: the index of every row, and one slot."""
    features = sum(len(table.feature_names) for table in spec.tables)
    return _ROW_BYTES * spec.rows + _FEATURE_BYTES * features + _slot_bytes(spec)


@functools.cache
def _library() -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Import only ColossalAI's cache, with empty parent packages: the real ones import peft and much more.

    Returns the class, and its eviction strategies by name.

    The empty packages are removed afterwards, so that a program with all of ColossalAI can still import it.
    """
    found = importlib.util.find_spec("colossalai")
    assert found is not None and found.submodule_search_locations  # `support` has looked
    folder, empty = Path(found.submodule_search_locations[0]), {}
    parts = _ROOM.split(".")
    for depth in range(1, len(parts) + 1):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(folder.joinpath(*parts[1:depth]))]
        empty[package.__name__] = package
    real = {name: sys.modules[name] for name in empty if name in sys.modules}
    sys.modules.update(empty)
    try:
        bag = importlib.import_module(f"{_ROOM}.cached_embedding").CachedEmbeddingBag
        strategies = importlib.import_module(f"{_ROOM}.cache_mgr").EvictionStrategy.__members__
    finally:
        for name in empty:
            del sys.modules[name]
        sys.modules.update(real)
    return bag, strategies


def _same(tensor: Tensor, *_: object, **__: object) -> Tensor:
    return tensor


_STAND_INS: tuple[tuple[Any, str, Callable[..., object]], ...] = (
    (torch.cuda, "current_device", lambda: torch.device("cpu")),
    (torch.cuda, "synchronize", lambda device=None: None),
    (Tensor, "cuda", _same),
    (Tensor, "pin_memory", _same),
)


@contextmanager
def _without_cuda() -> Iterator[None]:
    """Let the CPU stand in for the current CUDA device inside the block; the patches are undone afterwards."""
    own = [vars(owner).get(name) for owner, name, _ in _STAND_INS]
    for owner, name, stand_in in _STAND_INS:
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        for (owner, name, _), before in zip(_STAND_INS, own, strict=True):
            if before is None:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, before)
