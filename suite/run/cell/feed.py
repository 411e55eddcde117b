"""Batches of a trainer: its stream, who makes them, and their copies to the device.

Batches are preloaded before a timed run, or made by producer processes during training.

Producers that run during a timed window take cores away from the system under test. So they run only where there are
cores to spare; elsewhere the training process makes every batch of a window before timing starts. Producers import this
module too, so it imports no system.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Protocol

import psutil
import torch

from suite.records.record import Cell
from suite.run.resources import granted_cpus
from systems.threads import Task, Worker
from workloads.batch import Batch, Split, Workload
from workloads.manifest import read_manifest
from workloads.prepared import PreparedWorkload
from workloads.producer import Producer
from workloads.streams.synthetic import SyntheticWorkload

_CORES_PER_PRODUCER = 4
"""Cores per producer: during training, one core of four makes batches and three train."""
_MOST_PRODUCERS = 8
_SLOTS_PER_PRODUCER = 4
_PINNED_AHEAD = 4
"""Batches waiting in pinned memory; further ones wait in the producers' slots."""
_WORTH_PRODUCERS = 1_000_000
"""Minimum lookups of a run for which producers are worthwhile: they start while the tables are built."""

OnBatch = Callable[[], None]
_Sent = tuple[Batch, torch.cuda.Event | None]
"""A batch, and the event after its copy."""


def open_workload(cell: Cell, *, whole_split: Split | None = None) -> Workload:
    """The stream that a cell trains on; `whole_split` makes one batch of all rows of that split of real data."""
    if cell.data == "real":
        assert cell.data_dir is not None  # the plan gives it for real data
        folder = Path(cell.data_dir)
        rows = read_manifest(folder).splits[whole_split].rows if whole_split else cell.batch_size
        return PreparedWorkload.open(folder, batch_size=rows)
    return SyntheticWorkload.create(
        cell.workload, batch_size=cell.batch_size, seed=cell.round_seed, max_rows=cell.max_rows
    )


@dataclass(frozen=True, kw_only=True)
class FeedPlan:
    """How a cell's batches are made.

    Attributes:
        producers: Processes that make batches during training; 0: the training process makes them before timing.
        threads: Threads of the training process on the host.
    """

    producers: int
    threads: int


def plan_feed(*, device: str, lookups: int, cores: int, threads: int) -> FeedPlan:
    """Decide how batches are made; the rule depends only on the machine and the amount of work.

    With a CUDA device and at least four cores, producers use a quarter of the cores, eight at most, during training and
    the training process uses the others. Elsewhere, and where starting producers would take longer than making the
    batches, the training process makes them.

    Args:
        device: `cpu` or `cuda`.
        lookups: Ids of the whole run, over all tables.
        cores: Physical cores that this process may use; see `usable_cores`.
        threads: Threads of the training process if there are no producers.
    """
    spare = min(cores // _CORES_PER_PRODUCER, _MOST_PRODUCERS) if device == "cuda" else 0
    if spare and lookups >= _WORTH_PRODUCERS:
        return FeedPlan(producers=spare, threads=max(1, min(threads, cores - spare)))
    return FeedPlan(producers=0, threads=threads)


def usable_cores() -> int:
    """Number of physical cores that this process may use, within its affinity and its CPU quota."""
    cores = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    return max(1, int(min(cores, granted_cpus())))


class Feed(Protocol):
    """Source of a trainer's batches."""

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        """Prepare `count` batches before the timed run that takes them. `on_batch` reports progress."""

    def take(self) -> Batch:
        """The next batch."""


class PreloadedBatches:
    """Makes batches 0, 1, 2, ... in this process, each once, before timing; keeps each until all readers took it.

    Args:
        make: Makes the batch of a given number.
        pin_memory: Pin batches, so that copies to a CUDA device are asynchronous.
        keep: Keep all batches, for readers after `rewind`.
    """

    def __init__(self, make: Callable[[int], Batch], *, pin_memory: bool, keep: bool = False) -> None:
        self._make = make
        self._pin_memory = pin_memory
        self._kept: list[Batch] | None = [] if keep else None
        self.rewind()

    def rewind(self) -> None:
        """Drop all readers, and restart with batch 0."""
        made = tuple(self._kept or ())
        self._coming = chain(made, map(self._new, count(len(made))))
        self._waiting: list[deque[Batch]] = []

    def reader(self) -> Feed:
        """Add a reader that starts with the first batch. Add all readers before any takes a batch."""
        self._waiting.append(deque())
        return _Reader(self, self._waiting[-1])

    def make_one(self) -> None:
        """Make the next batch, for all readers."""
        batch = next(self._coming)
        for waiting in self._waiting:
            waiting.append(batch)

    def _new(self, index: int) -> Batch:
        batch = self._make(index)
        if self._pin_memory:
            # cached here and copied along; computed from ids on the device it would synchronise
            batch.features.length_per_key()
            batch = Batch(batch.dense.pin_memory(), batch.features.pin_memory(), batch.labels.pin_memory())
        if self._kept is not None:
            self._kept.append(batch)
        return batch


class _Reader:
    """A `Feed` of batches that other readers take too."""

    def __init__(self, batches: PreloadedBatches, waiting: deque[Batch]) -> None:
        self._batches = batches
        self._waiting = waiting

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        while len(self._waiting) < count:
            self._batches.make_one()
            on_batch()

    def take(self) -> Batch:
        batch = self._waiting.popleft()
        # features cache derived values such as offsets: every reader computes its own
        return Batch(batch.dense, copy(batch.features), batch.labels)


def in_process(workload: Workload, device: torch.device) -> Feed:
    """Training batches made in this process, before the timed run that uses them."""
    return PreloadedBatches(workload.batch, pin_memory=device.type == "cuda").reader()


class BackgroundLoader:
    """A `Feed` of batches that producer processes make during training.

    A background thread copies them out of the producers' memory into pinned memory, so that the training thread does
    not; torch releases the GIL for the copy.
    """

    def __init__(self, producer: Producer, *, total: int) -> None:
        self._producer = producer
        self._left = total
        self._copier = Worker("batches")
        self._coming: deque[Task[Batch]] = deque()
        self._order()

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        """Wait until the producers are idle, so that all timed windows start in the same state."""
        del count, on_batch
        self._copier.submit(self._producer.settle).result()

    def take(self) -> Batch:
        """The next batch."""
        batch = self._coming.popleft().result()
        self._order()
        return batch

    def close(self) -> None:
        """Stop the thread after its current task."""
        self._copier.close()

    def _order(self) -> None:
        while self._left and len(self._coming) < _PINNED_AHEAD:
            self._coming.append(self._copier.submit(self._producer.take))
            self._left -= 1


@contextmanager
def open_feed(plan: FeedPlan, cell: Cell, workload: Workload, *, device: torch.device) -> Iterator[Feed]:
    """A feed of a cell's training batches as planned; its producers stop when the block ends."""
    if not plan.producers:
        yield in_process(workload, device)
        return
    reopen, slots = partial(open_workload, cell), plan.producers * _SLOTS_PER_PRODUCER
    pin_memory = device.type == "cuda"
    with (
        Producer(reopen, total=cell.steps, workers=plan.producers, slots=slots, pin_memory=pin_memory) as producer,
        closing(BackgroundLoader(producer, total=cell.steps)) as feed,
    ):
        yield feed


class DevicePrefetcher:
    """Batches 0, 1, 2, ... of a feed, copied to the device; their ids stay on the host if `ids_on_host`.

    On a CPU nothing is copied; for CUDA the feed pins their memory. `on_batch` is called for every batch `fill` makes.

    Attributes:
        left: Number of batches still to be taken.
        ids_arrived: Event after the copy of the last taken batch's ids. None: they are on the host.
        waited_s: Seconds that `take` waited for the feed since the last `fill`.
    """

    def __init__(self, feed: Feed, *, total: int, device: torch.device, ids_on_host: bool, on_batch: OnBatch) -> None:
        self._feed = feed
        self._device = device
        self._ids_on_host = ids_on_host
        self._on_batch = on_batch
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead = 0 if self._stream is None else 1  # copies under way beyond the batch that is taken
        self._coming: deque[_Sent] = deque()
        self.left = total
        self.ids_arrived: torch.cuda.Event | None = None
        self.waited_s = 0.0

    def fill(self, count: int) -> float:
        """Fill the feed for `count` more batches, and start the first copies. Returns the seconds it took."""
        start = time.perf_counter()
        self._feed.fill(min(count + self._ahead, self.left) - len(self._coming), self._on_batch)
        self._start_copies()
        self.waited_s = 0.0
        return time.perf_counter() - start

    def take(self) -> Batch:
        """The next batch, for work that the current stream queues after this call; the host does not wait."""
        self._start_copies()
        self.left -= 1
        batch, copied = self._coming.popleft()
        self.ids_arrived = None if self._ids_on_host else copied
        return self._arrived(batch, copied)

    def bring(self, batch: Batch) -> Batch:
        """Copy a batch that is not from the feed."""
        return self._arrived(*self._sent(batch))

    def _start_copies(self) -> None:
        while len(self._coming) < min(1 + self._ahead, self.left):
            start = time.perf_counter()
            batch = self._feed.take()
            self.waited_s += time.perf_counter() - start
            self._coming.append(self._sent(batch))

    def _sent(self, batch: Batch) -> _Sent:
        if self._stream is None:
            return batch, None
        with self._stream:
            features = batch.features if self._ids_on_host else batch.features.to(self._device, non_blocking=True)
            dense = batch.dense.to(self._device, non_blocking=True)
            labels = batch.labels.to(self._device, non_blocking=True)
        return Batch(dense, features, labels), self._stream.record_event()

    def _arrived(self, batch: Batch, copied: torch.cuda.Event | None) -> Batch:
        if copied is not None:
            compute = torch.cuda.current_stream(self._device)
            compute.wait_event(copied)
            # allocated on the copy stream, which must not reuse their memory before the compute stream is done with it
            for part in (batch.dense, batch.labels, *([] if self._ids_on_host else [batch.features])):
                part.record_stream(compute)
        return batch
