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
from functools import lru_cache, partial
from itertools import count
from pathlib import Path

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

_Sent = tuple[Batch, torch.cuda.Event | None]
"""A batch, and the event after its copy."""


def open_workload(cell: Cell, *, whole_split: Split | None = None) -> Workload:
    """The stream that a cell trains on; `whole_split` makes one batch of all rows of that split of real data."""
    if cell.data == "real":
        assert cell.data_dir is not None  # the plan gives it for real data
        folder = Path(cell.data_dir)
        rows = read_manifest(folder).splits[whole_split].rows if whole_split else cell.batch_size
        return PreparedWorkload.open(folder, batch_size=rows)
    return _synthetic(cell.workload, batch_size=cell.batch_size, seed=cell.round_seed, max_rows=cell.max_rows)


_synthetic = lru_cache(maxsize=1)(SyntheticWorkload.create)  # a tenth of a second; systems that take turns share it


def producers_for(*, device: str, lookups: int, cores: int) -> int:
    """Number of processes that make batches during training; 0: the training process makes them before timing.

    The rule depends only on the machine and the amount of work. With a CUDA device and at least four cores, producers
    use a quarter of the cores, eight at most. Elsewhere, and where starting producers would take longer than making the
    batches, there are none.

    Args:
        device: `cpu` or `cuda`.
        lookups: Ids of the whole run, over all tables.
        cores: Physical cores that this process may use; see `usable_cores`.
    """
    return min(cores // _CORES_PER_PRODUCER, _MOST_PRODUCERS) if device == "cuda" and lookups >= _WORTH_PRODUCERS else 0


def usable_cores() -> int:
    """Number of physical cores that this process may use, within its affinity and its CPU quota."""
    cores = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    return max(1, int(min(cores, granted_cpus())))


def made_batches(make: Callable[[int], Batch], *, pin_memory: bool) -> Iterator[Batch]:
    """Batches 0, 1, 2, ..., each made when it is asked for; pinned, so that copies to a device are asynchronous."""
    for index in count():
        batch = make(index)
        if pin_memory:
            # cached here and copied along; computed from ids on the device it would synchronise
            batch.features.length_per_key()
            batch = Batch(batch.dense.pin_memory(), batch.features.pin_memory(), batch.labels.pin_memory())
        yield batch


class PreloadedBatches:
    """Batches that this process makes before the timed run that takes them.

    Args:
        batches: Batches in order; several feeds may share them by `itertools.tee`.
        on_batch: Called for every batch, to report progress.
    """

    def __init__(self, batches: Iterator[Batch], *, on_batch: Callable[[], None] = lambda: None) -> None:
        self._batches = batches
        self._on_batch = on_batch
        self._waiting: deque[Batch] = deque()

    def fill(self, count: int) -> None:
        """Make batches until `count` are waiting."""
        while len(self._waiting) < count:
            self._waiting.append(next(self._batches))
            self._on_batch()

    def take(self) -> Batch:
        """The next batch."""
        batch = self._waiting.popleft()
        # features cache derived values such as offsets: every feed computes its own
        return Batch(batch.dense, copy(batch.features), batch.labels)


def in_process(
    workload: Workload, device: torch.device, *, on_batch: Callable[[], None] = lambda: None
) -> PreloadedBatches:
    """Training batches made in this process, before the timed run that uses them."""
    return PreloadedBatches(made_batches(workload.batch, pin_memory=device.type == "cuda"), on_batch=on_batch)


class BackgroundLoader:
    """Batches that producer processes make during training.

    A background thread copies them out of the producers' memory into pinned memory, so that the training thread does
    not; torch releases the GIL for the copy.
    """

    def __init__(self, producer: Producer, *, total: int) -> None:
        self._producer = producer
        self._left = total
        self._copier = Worker("batches")
        self._coming: deque[Task[Batch]] = deque()
        self._order()

    def fill(self, count: int) -> None:
        """Wait until the producers are idle, so that all timed windows start in the same state."""
        del count
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


Feed = PreloadedBatches | BackgroundLoader
"""Source of a trainer's batches: `fill` prepares some before the timed run that takes them, `take` gives the next."""


@contextmanager
def open_feed(
    producers: int, cell: Cell, workload: Workload, *, device: torch.device, on_batch: Callable[[], None]
) -> Iterator[Feed]:
    """A feed of a cell's training batches; its producers, if there are any, stop when the block ends."""
    if not producers:
        yield in_process(workload, device, on_batch=on_batch)
        return
    reopen, slots = partial(open_workload, cell), producers * _SLOTS_PER_PRODUCER
    pin_memory = device.type == "cuda"
    with (
        Producer(reopen, total=cell.steps, workers=producers, slots=slots, pin_memory=pin_memory) as producer,
        closing(BackgroundLoader(producer, total=cell.steps)) as feed,
    ):
        yield feed


class DevicePrefetcher:
    """Batches 0, 1, 2, ... of a feed, copied to the device; their ids stay on the host if `ids_on_host`.

    On a CPU nothing is copied; for CUDA the feed pins their memory.

    Attributes:
        left: Number of batches still to be taken.
        ids_arrived: Event after the copy of the last taken batch's ids. None: they are on the host.
        waited_s: Seconds that `take` waited for the feed since the last `fill`.
    """

    def __init__(self, feed: Feed, *, total: int, device: torch.device, ids_on_host: bool) -> None:
        self._feed = feed
        self._device = device
        self._ids_on_host = ids_on_host
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead = 0 if self._stream is None else 1  # copies under way beyond the batch that is taken
        self._coming: deque[_Sent] = deque()
        self.left = total
        self.ids_arrived: torch.cuda.Event | None = None
        self.waited_s = 0.0

    def fill(self, count: int) -> float:
        """Fill the feed for `count` more batches, and start the first copies. Returns the seconds it took."""
        start = time.perf_counter()
        self._feed.fill(min(count + self._ahead, self.left) - len(self._coming))
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
