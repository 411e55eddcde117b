"""Batches made ahead by other processes: spawned workers write them into memory that they share with the trainer.

The memory is a ring of slots that grow with what they hold, so bags may have any length. It has no name
(`memfd_create`): nothing can be left behind in /dev/shm however the processes end, and the 64 MB that containers give
to /dev/shm do not limit it. Whoever takes a batch gets a copy of its own, valid for as long as it is kept.
"""

import math
import mmap
import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from workloads.batch import Batch, Split, Workload

_JOIN_S = 10.0
_ALIGNMENT = 64
_NICENESS = 5
"""The trainer gets most of a core that a producer wants too."""

OpenWorkload = Callable[[], Workload]
"""Opens the workload in a producer; it is pickled, so it must be a function of a module or a `functools.partial` of
one."""


@dataclass(frozen=True)
class Contents:
    """The content of a slot: keys and samples of the features, and the arrays by dtype and shape, one after another.

    The arrays are dense, labels and values, and unless every bag has one id lengths and offsets.
    """

    keys: tuple[str, ...]
    stride: int
    arrays: tuple[tuple[str, tuple[int, ...]], ...]


class Slot:
    """A piece of shared memory without a name. It grows with what is put in; one process uses it at a time."""

    def __init__(self, handle: int | None = None) -> None:
        self._handle = os.memfd_create("batch") if handle is None else handle
        self._map: mmap.mmap | None = None

    def __reduce__(self) -> tuple[Callable[[Any], "Slot"], tuple[Any]]:
        """Into a process that is being spawned, the file descriptor goes along."""
        return _received, (reduction.DupFd(self._handle),)

    def put(self, batch: Batch) -> Contents:
        """Write a batch, without weights, into the memory; returns what it takes to read it back."""
        features = batch.features
        tensors = [batch.dense, batch.labels, features.values()]
        if not _one_id_per_bag(features):
            tensors += [features.lengths(), features.offsets()]
        arrays = [tensor.numpy() for tensor in tensors]
        contents = Contents(
            keys=tuple(features.keys()),
            stride=features.stride(),
            arrays=tuple((array.dtype.str, array.shape) for array in arrays),
        )
        for view, array in zip(self._views(contents), arrays, strict=True):
            view[...] = array
        return contents

    def get(self, contents: Contents, *, pin_memory: bool) -> Batch:
        """A copy of the batch that is here; batches of a size whose bags have one id each share lengths and offsets."""
        found = [torch.from_numpy(view) for view in self._views(contents)]
        copies = [torch.empty(view.shape, dtype=view.dtype, pin_memory=pin_memory).copy_(view) for view in found]
        dense, labels, values, *bags = copies
        lengths, offsets = bags or _one_each(values.numel(), pin_memory=pin_memory)
        features = KeyedJaggedTensor(
            keys=list(contents.keys), values=values, lengths=lengths, offsets=offsets, stride=contents.stride
        )
        if pin_memory:
            features.length_per_key()  # cached here and carried along; asked of ids on the device it would wait
        return Batch(dense, features, labels)

    def close(self) -> None:
        """Give the memory back."""
        self._map = None
        os.close(self._handle)

    def _views(self, contents: Contents) -> list[np.ndarray]:
        """The arrays of the contents, in memory that is mapped anew where it has become too small."""
        sizes = (math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in contents.arrays)
        *starts, end = accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0)
        if self._map is None or len(self._map) < end:
            if os.fstat(self._handle).st_size < end:
                os.ftruncate(self._handle, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._map = mmap.mmap(self._handle, 0)
        places = zip(contents.arrays, starts, strict=True)
        return [np.ndarray(shape, dtype, buffer=self._map, offset=start) for (dtype, shape), start in places]


def _received(handle: Any) -> Slot:  # noqa: ANN401 - what DupFd returns has no public type
    return Slot(handle.detach())


@lru_cache(maxsize=4)
def _one_each(bags: int, *, pin_memory: bool) -> tuple[Tensor, Tensor]:
    """Lengths and offsets of bags with one id each."""
    lengths, offsets = torch.ones(bags, dtype=torch.int64), torch.arange(bags + 1, dtype=torch.int64)
    return (lengths.pin_memory(), offsets.pin_memory()) if pin_memory else (lengths, offsets)


def _one_id_per_bag(features: KeyedJaggedTensor) -> bool:
    lengths = features.lengths()
    return lengths.dtype == torch.int64 and lengths.numel() == features.values().numel() and bool((lengths == 1).all())


class ProducerDied(RuntimeError):
    """A producer process ended before it had made its batches."""


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    asked: set[int] = field(default_factory=set)
    """Batches that it has still to make."""


class Producer:
    """Makes batches 0, 1, 2, ... of a workload's training split in worker processes and hands them out in order.

    The batches are, bit for bit, those of `workload.batch`. A context manager: on the way out the workers end. Should
    this process die, they end as well, since each ends with its pipe. Not for use by several threads at once.

    Args:
        open_workload: Opens the workload in a worker; see `OpenWorkload`.
        total: Batches in all.
        workers: Processes, at least 1. Each computes on one thread.
        slots: Batches that may be made and not yet taken, at least 1.
        pin_memory: Hand out batches in pinned memory, for copies to a CUDA device that do not wait.
    """

    def __init__(
        self, open_workload: OpenWorkload, *, total: int, workers: int, slots: int, pin_memory: bool = False
    ) -> None:
        self._total = total
        self._pin_memory = pin_memory
        self._asked = self._taken = 0
        self._made: dict[int, tuple[int, Contents | Exception]] = {}
        self._slots = [Slot() for _ in range(slots)]
        self._free = deque(range(slots))
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_started(open_workload, self._slots))
            self._ask()
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Wait until the workers have nothing to do: all batches are made, or all slots are full."""
        while any(worker.asked for worker in self._workers):
            self._listen()

    def take(self) -> Batch:
        """The next batch, waiting for it where need be. Its memory is its own.

        Raises:
            IndexError: all were taken.
            ProducerDied: the worker that had to make it is gone.
            Exception: whatever making it raised, with the worker's traceback as a note.
        """
        index = self._taken
        if index >= self._total:
            raise IndexError(f"all {self._total} batches were taken")
        while index not in self._made:
            self._listen()
        slot, contents = self._made.pop(index)
        self._taken += 1
        try:
            if isinstance(contents, Exception):
                raise contents
            return self._slots[slot].get(contents, pin_memory=self._pin_memory)
        finally:
            self._free.append(slot)
            self._ask()

    def close(self) -> None:
        """End the workers and give the memory back."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_JOIN_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        for slot in self._slots:
            slot.close()
        self._workers, self._slots = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self) -> None:
        """Give the free slots to the workers that have the least to do."""
        while self._free and self._asked < self._total:
            worker = min(self._workers, key=lambda worker: len(worker.asked))
            slot = self._free.popleft()
            worker.asked.add(self._asked)
            try:
                worker.pipe.send((self._asked, slot))
            except ConnectionError:
                raise _death(worker) from None
            self._asked += 1

    def _listen(self) -> None:
        """Wait until a worker has said something, and hear all that was said."""
        busy = {worker.pipe: worker for worker in self._workers if worker.asked}
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]  # `wait` gives back what it was given
            try:
                index, slot, contents = worker.pipe.recv()
            except (EOFError, ConnectionError):
                raise _death(worker) from None
            worker.asked.discard(index)
            self._made[index] = (slot, contents)


def _started(open_workload: OpenWorkload, slots: list[Slot]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with theirs:  # the worker holds a copy; while this one is open, its death would not be seen
        process = context.Process(target=_work, args=(theirs, slots, open_workload), daemon=True)
        process.start()
    return _Worker(process, ours)


def _death(worker: _Worker) -> ProducerDied:
    """The error that says in a sentence how a worker ended."""
    worker.process.join(_JOIN_S)
    code, pid = worker.process.exitcode, worker.process.pid
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    why = ", SIGKILL (by a person, a job scheduler or for want of memory)" if code == -signal.SIGKILL else ""
    return ProducerDied(f"the producer process {pid} {how}{why} before it had made batch {min(worker.asked)}")


def _work(pipe: Connection, slots: list[Slot], open_workload: OpenWorkload) -> None:
    """The life of a worker: batches are asked for by index and slot until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer to handle; its end closes the pipe
    torch.set_num_threads(1)
    os.nice(_NICENESS)
    opened = cache(open_workload)
    with suppress(Exception):  # raised again for each batch that is asked for
        opened()
    with suppress(EOFError, ConnectionError):
        while True:
            index, slot = pipe.recv()
            try:
                contents: Contents | Exception = slots[slot].put(opened().batch(index, Split.TRAIN))
            except Exception as error:
                contents = _sent(error)
            pipe.send((index, slot, contents))


def _sent(error: Exception) -> Exception:
    """An exception as it goes to the trainer, with its traceback; what cannot be pickled becomes a RuntimeError."""
    sent = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("".join(traceback.format_exception(error)))
    return sent
