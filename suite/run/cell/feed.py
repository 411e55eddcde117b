"""Where the trainer's batches come from: made before the clock of a run starts, or by other processes while it trains.

Producers that run during a timed window take cores away from the system under test. So they do only where there are
cores to spare; elsewhere every batch of a window is made before its clock starts, and nobody else computes in it.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import psutil
import torch

from suite.run.control_groups import granted_cpus
from systems.threads import Task, Worker
from workloads.batch import Batch, Workload
from workloads.producer import OpenWorkload, Producer

_CORES_PER_PRODUCER = 4
"""During training, one core of four makes batches and three train."""
_MOST_PRODUCERS = 8
_SLOTS_PER_PRODUCER = 4
_PINNED_AHEAD = 4
"""Batches that wait in pinned memory; more wait in the producers' slots."""
_WORTH_PRODUCERS = 1_000_000
"""Lookups of a run from which producers pay: they start while the tables are built."""

OnBatch = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class FeedPlan:
    """How a cell's batches are made.

    Attributes:
        producers: Processes that make them during training; 0: the training process does, before the clock.
        threads: What the training process computes with on the host.
    """

    producers: int
    threads: int


def plan_feed(*, device: str, lookups: int, cores: int, threads: int) -> FeedPlan:
    """Decide how batches are made; the rule depends on the machine and the amount of work alone.

    On a CUDA device with at least four cores, a quarter of the cores, eight at most, produces during training and the
    training process computes with the others. Elsewhere, and where starting producers would take longer than the
    batches do, the training process makes them.

    Args:
        device: `cpu` or `cuda`.
        lookups: Ids of the whole run, over all tables.
        cores: Physical cores that this process may use; see `usable_cores`.
        threads: Threads for the training process where it need not share.
    """
    spare = min(cores // _CORES_PER_PRODUCER, _MOST_PRODUCERS) if device == "cuda" else 0
    if spare and lookups >= _WORTH_PRODUCERS:
        return FeedPlan(producers=spare, threads=max(1, min(threads, cores - spare)))
    return FeedPlan(producers=0, threads=threads)


def usable_cores() -> int:
    """Physical cores that this process may use: two threads of one core are no core to spare, nor is one over quota."""
    cores = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    try:
        return max(1, int(min(cores, granted_cpus())))
    except OSError:  # no Linux
        return cores


class Feed(Protocol):
    """What a trainer takes its batches from."""

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        """Before the clock of a run that takes `count` batches. `on_batch` shows that something happens."""

    def take(self) -> Batch:
        """The next batch."""


class PreloadedBatches:
    """Makes batches 0, 1, 2, ... in this process, each once, before a clock starts; each waits until all took it.

    Args:
        make: Makes the batch of a number.
        pin_memory: For copies to a CUDA device that do not wait.
    """

    def __init__(self, make: Callable[[int], Batch], *, pin_memory: bool) -> None:
        self._make = make
        self._pin_memory = pin_memory
        self.rewind()

    def rewind(self) -> None:
        """Forget all readers, and begin anew."""
        self._coming = map(self._make, count())
        self._waiting: list[deque[Batch]] = []

    def reader(self) -> Feed:
        """What one more trainer takes its batches from, beginning with the first. All come before any takes one."""
        self._waiting.append(deque())
        return _Reader(self, self._waiting[-1])

    def make_one(self) -> None:
        """Make the next batch, for all readers."""
        batch = next(self._coming)
        if self._pin_memory:
            # cached here and carried along; asked of ids on the device it would wait for them
            batch.features.length_per_key()
            batch = Batch(batch.dense.pin_memory(), batch.features.pin_memory(), batch.labels.pin_memory())
        for waiting in self._waiting:
            waiting.append(batch)


class _Reader:
    """A `Feed` of batches that others may take too."""

    def __init__(self, batches: PreloadedBatches, waiting: deque[Batch]) -> None:
        self._batches = batches
        self._waiting = waiting

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        while len(self._waiting) < count:
            self._batches.make_one()
            on_batch()

    def take(self) -> Batch:
        batch = self._waiting.popleft()
        # features keep what they computed of themselves, such as offsets: every reader computes that anew
        return Batch(batch.dense, copy(batch.features), batch.labels)


def in_process(workload: Workload, device: torch.device) -> Feed:
    """Training batches made in this process, before the clock of the run that uses them."""
    return PreloadedBatches(workload.batch, pin_memory=device.type == "cuda").reader()


class BackgroundLoader:
    """Has producers make batches while the trainer works. A `Feed`.

    A thread takes them out of the producers' memory, so that copying, most of all into pinned memory, is off the
    trainer's path; torch lets go of the interpreter for it.
    """

    def __init__(self, producer: Producer, *, total: int) -> None:
        self._producer = producer
        self._left = total
        self._copier = Worker("batches")
        self._coming: deque[Task[Batch]] = deque()
        producer.request(total)
        self._order()

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        """Wait until the producers have nothing to do, so that a window starts as the next one will."""
        del count, on_batch
        self._copier.submit(self._producer.settle).result()

    def take(self) -> Batch:
        """The next batch."""
        batch = self._coming.popleft().result()
        self._order()
        return batch

    def close(self) -> None:
        """Let the thread finish what it is at."""
        self._copier.close()

    def _order(self) -> None:
        while self._left and len(self._coming) < _PINNED_AHEAD:
            self._coming.append(self._copier.submit(self._producer.take))
            self._left -= 1


@contextmanager
def open_feed(
    plan: FeedPlan, workload: Workload, *, reopen: OpenWorkload, total: int, device: torch.device
) -> Iterator[Feed]:
    """A feed of `total` batches as planned; its producers, which `reopen` the same workload, end with the block."""
    if not plan.producers:
        yield in_process(workload, device)
        return
    slots, pin_memory = plan.producers * _SLOTS_PER_PRODUCER, device.type == "cuda"
    with (
        Producer(reopen, total=total, workers=plan.producers, slots=slots, pin_memory=pin_memory) as producer,
        closing(BackgroundLoader(producer, total=total)) as feed,
    ):
        yield feed
