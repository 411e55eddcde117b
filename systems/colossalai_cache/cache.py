"""One `CachedEmbeddingBag` over concatenated tables, with the index and update code that its users write.

It is imported without the rest of ColossalAI, and works without CUDA where there is none.
"""

import functools
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from systems.answers import MemoryBreakdown, MemoryUse, Tier
from systems.features import Group, feature_of_ids
from systems.spec import SystemSpec

WARM_SHARE = 0.7
"""Share of slots filled at the start: the library's default `warmup_ratio`, also in its authors' scripts."""


class BagCache:
    """Tables of one width in one `CachedEmbeddingBag`, trained by SGD.

    A row's number is its index in the concatenated tables; its rank is its index in the array on the host.
    """

    def __init__(self, spec: SystemSpec, group: Group, slots: int) -> None:
        self.group = group
        self._on_cpu = spec.device.type == "cpu"
        rows, first = group.rows, group.tables[0]
        sizes = [table.num_embeddings for table in group.tables]
        starts = [*accumulate(sizes[:-1], initial=0)]
        self._starts = {table.name: start for table, start in zip(group.tables, starts, strict=True)}
        spans = [[starts[t], sizes[t]] for t in group.table_of_feature]
        self._spans = torch.tensor(spans, device=spec.device).T
        accesses = spec.frequencies
        bag, strategies = library()
        with self._device(), redirect_stdout(io.StringIO()):  # it prints how long it took to fill the slots
            self._bag = bag(
                rows,
                first.embedding_dim,
                sparse=True,
                _weight=torch.zeros(rows, first.embedding_dim),
                mode="sum",
                include_last_offset=True,
                cache_ratio=min(1.0, (slots + 0.5) / rows),  # it rounds down
                ids_freq_mapping=None if accesses is None else torch.cat([accesses[t.name] for t in group.tables]),
                warmup_ratio=WARM_SHARE,
                evict_strategy=strategies[spec.parameters["policy"].upper()],
            )
        self._manager = self._bag.cache_weight_mgr
        self._optimizer = torch.optim.SGD([self.slots], lr=spec.optimizer.lr)
        summed = spec.parameters["gradients"] == "summed"
        self.slots.register_post_accumulate_grad_hook(self._update_summed if summed else self._update)
        self.hits = self.misses = 0

    @property
    def slots(self) -> nn.Parameter:
        """Copies of rows on the device, fp32 `[slots, dim]`."""
        found: nn.Parameter = self._manager.cuda_cached_weight
        return found

    def rows_of(self, part: KeyedJaggedTensor) -> Tensor:
        """The ids of a batch as rows, int64 `[n]`.

        Raises:
            RuntimeError: an id is outside its table, where it would be a row of another; on CUDA a device assertion.
        """
        ids, feature = part.values(), feature_of_ids(part)
        start, rows = (span.index_select(0, feature) for span in self._spans)
        torch._assert_async(((ids >= 0) & (ids < rows)).all(), "an id is outside its table")
        found: Tensor = ids + start
        return found

    def look_up(self, rows: Tensor, part: KeyedJaggedTensor) -> Tensor:
        """Bring the rows of a batch into slots and pool them: fp32 `[batch, features * dim]`.

        Raises:
            AssertionError: the rows do not fit the slots; nothing was moved.
        """
        with self._device():
            pooled: Tensor = self._bag(rows, part.offsets().long())
        manager = self._manager
        self.hits += manager.num_hits_history[-1]
        self.misses += manager.num_miss_history[-1]
        for history in (manager.num_hits_history, manager.num_miss_history, manager.num_write_back_history):
            history.clear()  # left alone, they grow by an entry per batch
        by_feature = pooled.view(-1, part.stride(), pooled.shape[1])
        return by_feature.transpose(0, 1).flatten(1)

    @torch.no_grad()
    def load(self, table: str, start: int, weights: Tensor) -> None:
        """Overwrite rows of a table from `start` on, on the host and in slots; `weights` fp32 `[n, dim]`."""
        first = self._starts[table] + start
        ranks = self._manager.idx_map[first : first + weights.shape[0]]
        self._manager.weight.index_copy_(0, ranks.cpu(), weights.cpu())
        at, slots = self._cached(ranks)
        self.slots.index_copy_(0, slots, weights[at].to(self.slots.device))

    @torch.no_grad()
    def read(self, table: str, ids: Tensor) -> Tensor:
        """Copies of rows of a table, fp32 `[n, dim]`, on the host; ids int64 `[n]` that are in the table."""
        ranks = self._manager.idx_map[(ids + self._starts[table]).to(self.slots.device)]
        weights: Tensor = self._manager.weight.index_select(0, ranks.cpu())
        at, slots = self._cached(ranks)
        weights[at] = self.slots[slots].cpu()
        return weights

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.param_groups[0]["lr"] = lr

    @torch.no_grad()
    def flush(self) -> None:
        """Write every row back and empty the cache, as the library's `flush` does."""
        misses, lookups = self._manager._cache_miss, self._manager._total_cache
        self._manager.flush()
        self._manager._cache_miss, self._manager._total_cache = misses, lookups  # the library's flush resets only these

    def memory(self) -> MemoryBreakdown:
        manager = self._manager
        index = [manager.idx_map, manager.inverted_cached_idx, manager.cached_idx_map, self._spans]
        counts = getattr(manager, "freq_cnter", None)  # lfu has them
        return {
            (Tier.HOST, MemoryUse.ROWS): manager.weight.nbytes,
            (Tier.DEVICE, MemoryUse.ROWS): self.slots.nbytes,
            (Tier.DEVICE, MemoryUse.INDEX): sum(tensor.nbytes for tensor in (*index, counts) if tensor is not None),
        }

    def counts(self) -> dict[str, int]:
        """Traffic since the last reset, by the names of `Counters`."""
        manager, width = self._manager, self.slots.shape[1]
        return {
            "lookups": int(manager._total_cache),
            "unique_ids": self.hits + self.misses,
            "unique_misses": self.misses,
            "lookup_misses": int(manager._cache_miss),
            "rows_fetched": manager._cpu_to_cuda_numel // width,
            "rows_written_back": manager._cuda_to_cpu_numel // width,
            "bytes_fetched": 4 * manager._cpu_to_cuda_numel,
            "bytes_written_back": 4 * manager._cuda_to_cpu_numel,
        }

    def reset_counters(self) -> None:
        self.hits = self.misses = 0
        self._manager._reset_comm_stats()

    def _cached(self, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (on the host) of the ranks that have slots, and these slots (on the device)."""
        slots = self._manager.inverted_cached_idx[ranks]
        at = (slots >= 0).nonzero().squeeze(1)
        return at.cpu(), slots[at]

    def _update(self, leaf: Tensor) -> None:
        """Torch's SGD on the sparse gradient as it is: a row is rounded after each of its gradients."""
        if leaf.grad is not None:
            self._optimizer.step()
            leaf.grad = None

    def _update_summed(self, leaf: Tensor) -> None:
        """Torch's SGD on gradients summed by slot: a row is rounded once."""
        if leaf.grad is None:
            return
        slots, position = leaf.grad._indices()[0].unique(return_inverse=True)
        total = torch.zeros(slots.numel(), leaf.shape[1], device=leaf.device)
        total.index_add_(0, position, leaf.grad._values())
        leaf.grad = torch.sparse_coo_tensor(
            slots.unsqueeze(0), total, leaf.shape, is_coalesced=True, check_invariants=False
        )
        self._update(leaf)

    def _device(self) -> AbstractContextManager[Any]:
        return without_cuda() if self._on_cpu else nullcontext()


_ROOM = "colossalai.legacy.nn.parallel.layers.cache_embedding"


def missing() -> str:
    """Names of required packages that are not installed, joined by "and"; empty if all are."""
    names = ("colossalai", "contexttimer")
    return " and ".join(name for name in names if importlib.util.find_spec(name) is None)


@functools.cache
def library() -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Import only ColossalAI's cache, with empty parent packages: the real ones import peft and much more.

    Returns the class, and its eviction strategies by name.

    The empty packages are removed afterwards, so that a program with all of ColossalAI can still import it.

    Raises:
        ImportError: it is not installed.
    """
    found = importlib.util.find_spec("colossalai")
    if found is None or not found.submodule_search_locations:
        raise ImportError("colossalai is not installed", name="colossalai")
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
def without_cuda() -> Iterator[None]:
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
