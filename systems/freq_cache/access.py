"""Access to a collection: one thread at a time, in the process that built it; and its rows outside of lookups."""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from systems.answers import Rows
from systems.contract import EmbeddingSystem
from systems.freq_cache import checkpoint
from systems.freq_cache.arguments import FusedOptimizer
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.checkpoint import StreamedRows, streamed
from systems.freq_cache.pipeline import Pipeline
from systems.freq_cache.tiers.commits import JSON, Commits
from systems.freq_cache.tiers.file import FileTier
from systems.threads import Worker

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Access:
    """Refuses threads and processes that may not use a collection now.

    Not a lock, which an interrupt could leave locked. The mark is a thread and a frame on its stack. A mark that an
    interrupt leaves behind is ignored, because its frame is no longer on the stack.
    """

    def __init__(self) -> None:
        self.closed = False
        self._process = os.getpid()
        self._inside: dict[str, tuple[int, FrameType]] = {}

    def check(self) -> None:
        """Refuse a collection that cannot be used here.

        Raises:
            RuntimeError: it was closed, or built in another process.
        """
        if self.closed:
            raise RuntimeError("the collection was closed: build another one")
        if os.getpid() != self._process:
            raise RuntimeError(
                "the collection was built in another process, and a forked one has neither its threads nor files of "
                "its own: build another collection here, or start processes by spawning"
            )

    def enter(self) -> bool:
        """Mark the calling thread as the user of the collection. Returns whether one of its methods made this call.

        Raises:
            RuntimeError: another thread uses it, or this thread is inside another call to it; or as `check`.
        """
        self.check()
        mine = threading.get_ident(), sys._getframe(1)
        found = self._inside.setdefault("by", mine)
        if found is mine:
            return False
        here = found[0] == mine[0]
        stack = _stack(mine[1].f_back if here else sys._current_frames().get(found[0]))
        if found[1] not in stack:  # an interrupt left the mark behind
            self._inside["by"] = mine
            return False
        if not here:
            raise RuntimeError(
                "another thread is using the collection: call it from one thread at a time, and wait for its backward"
            )
        between = stack[: stack.index(found[1])]
        if not all(frame.f_globals.get("__name__", "").startswith("systems.") for frame in between):
            raise RuntimeError(
                "the collection is in the middle of a call, which this one interrupts: a signal handler, a finalizer "
                "or a policy cannot call it. Note there what to do, or raise, and call it from the training loop"
            )
        return True

    def leave(self) -> None:
        """Remove the mark."""
        self._inside.clear()

    @property
    def in_its_process(self) -> bool:
        """Whether this is the process that built the collection."""
        return os.getpid() == self._process


def _stack(frame: FrameType | None) -> list[FrameType]:
    """A frame and those below it."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


class _Guarded(Protocol):
    _access: Access


Self = TypeVar("Self", bound=_Guarded)


def one_at_a_time(
    method: Callable[Concatenate[Self, Arguments], Answer],
) -> Callable[Concatenate[Self, Arguments], Answer]:
    """Decorate a method with `Access.enter` and `Access.leave`."""

    @wraps(method)
    def call(self: Self, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        if torch.is_inference_mode_enabled():  # tensors created now are kept, and may be trained later
            with torch.inference_mode(False), torch.no_grad():
                return call(self, *arguments, **named)
        if self._access.enter():
            return method(self, *arguments, **named)  # called by another method, which leaves
        try:
            return method(self, *arguments, **named)
        finally:
            self._access.leave()

    return call


def end(access: Access, workers: Sequence[Worker | None], caches: list[Cache], commits: Commits | None) -> None:
    """Stop the threads, close tiers and directory, and clear the list of caches, which frees their rows.

    In a forked process it does nothing: they belong to the parent.
    """
    access.closed = True
    if not access.in_its_process:
        return
    for worker in workers:
        if worker is not None:
            worker.close()
    for cache in caches:
        cache.tier.close()
    if commits is not None:
        commits.close()
    caches.clear()


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
        saves = [cast(FileTier, cache.tier).save_map for cache in self.caches]  # rows in a directory have no other tier
        steps: list[JSON] = [cache.pool.steps for cache in self.caches]
        self._commits.commit(saves, {"hyper": {**self.fused_optimizer.hyper}, "steps": steps})

    def optimizer_steps(self, table: str) -> int:
        return self._cache_of_table[table].pool.steps

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        self._cache_of_table[table].pool.steps = steps
