"""Where the trainer's batches come from: made before the clock of a run starts, or by other processes while it trains.

Producers that run during a timed window take cores away from the system under test. So they do only where there are
cores to spare; elsewhere every batch of a window is made before its clock starts, and nobody else computes in it.
"""

from __future__ import annotations

import enum
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from workloads.batch import Batch, Split, Workload
from workloads.producer import OpenWorkload, Producer

_CORES_PER_PRODUCER = 4
"""During training, one core of four makes batches and three train."""
_MOST_PRODUCERS = 8
_SLOTS_PER_PRODUCER = 4
_PINNED_AHEAD = 4
"""Batches that wait in pinned memory; more wait in the producers' slots."""
_WORTH_WHILE_TRAINING = 1_000_000
"""Lookups of a run from which producers pay where they cost no core: they start while the tables are built."""
_WORTH_BEFORE_THE_CLOCK = 100_000_000
"""Lookups of a run from which producers pay where they compete with it: each takes three seconds of a core to start,
and one core makes a hundred million ids in six."""
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Mode(enum.StrEnum):
    """Who makes batches, and when."""

    IN_PROCESS = "by the training process, before the clock"
    BEFORE = "by producers, before the clock"
    DURING = "by producers, during training"


@dataclass(frozen=True, kw_only=True)
class FeedPlan:
    """How a cell's batches are made.

    Attributes:
        mode: Who makes them, and when.
        producers: Processes beside the training process.
        threads: What the training process computes with on the host.
    """

    mode: Mode
    producers: int
    threads: int


def plan_feed(*, device: str, lookups: int, cores: int, threads: int) -> FeedPlan:
    """Decide how batches are made; the rule depends on the machine and the amount of work alone.

    On a CUDA device with at least four cores, a quarter of the cores, eight at most, produces during training and the
    training process computes with the others. On a CPU training takes all cores, so producers fill each window before
    its clock. Where starting producers would take longer than the batches do, the training process makes them.

    Args:
        device: `cpu` or `cuda`.
        lookups: Ids of the whole run, over all tables.
        cores: Physical cores that this process may use; see `usable_cores`.
        threads: Threads for the training process where it need not share.
    """
    spare = min(cores // _CORES_PER_PRODUCER, _MOST_PRODUCERS) if device == "cuda" else 0
    if spare and lookups >= _WORTH_WHILE_TRAINING:
        return FeedPlan(mode=Mode.DURING, producers=spare, threads=max(1, min(threads, cores - spare)))
    if cores > 1 and lookups >= _WORTH_BEFORE_THE_CLOCK:
        return FeedPlan(mode=Mode.BEFORE, producers=min(cores, _MOST_PRODUCERS), threads=threads)
    return FeedPlan(mode=Mode.IN_PROCESS, producers=0, threads=threads)


def usable_cores() -> int:
    """Physical cores that this process may use: two threads of one core are no core to spare, nor is one over quota."""
    cores = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    try:
        quota, period = _CPU_QUOTA.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


class Source(Protocol):
    """Batches 0, 1, 2, ... of a training split, each once."""

    def request(self, count: int) -> None:
        """Tell that `count` more will be taken."""

    def take(self) -> Batch:
        """The next batch."""


OnBatch = Callable[[], None]


class Feed(Protocol):
    """What a trainer takes its batches from."""

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        """Before the clock of a run that takes `count` batches. `on_batch` shows that something happens."""

    def take(self) -> Batch:
        """The next batch."""


class InProcess:
    """Makes batches in this process. A `Source`."""

    def __init__(self, workload: Workload, *, pin_memory: bool = False) -> None:
        self._workload = workload
        self._pin_memory = pin_memory
        self._taken = 0

    def request(self, count: int) -> None:
        """Nothing: a batch is made when it is taken."""

    def take(self) -> Batch:
        """The next batch."""
        batch = self._workload.batch(self._taken, Split.TRAIN)
        self._taken += 1
        return pinned(batch) if self._pin_memory else batch


class BeforeTheClock:
    """Has all batches of a run waiting before its clock starts. A `Feed`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ready: deque[Batch] = deque()

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        """Make batches until `count` wait."""
        missing = count - len(self._ready)
        self._source.request(max(0, missing))
        for _ in range(missing):
            self._ready.append(self._source.take())
            on_batch()

    def take(self) -> Batch:
        """The next batch."""
        return self._ready.popleft()


class DuringTraining:
    """Has producers make batches while the trainer works. A `Feed`.

    A thread takes them out of the producers' memory, so that copying, most of all into pinned memory, is off the
    trainer's path; torch lets go of the interpreter for it.
    """

    def __init__(self, producer: Producer, *, total: int) -> None:
        self._producer = producer
        self._left = total
        self._copier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._coming: deque[Future[Batch]] = deque()
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
        self._copier.shutdown(wait=True, cancel_futures=True)

    def _order(self) -> None:
        while self._left and len(self._coming) < _PINNED_AHEAD:
            self._coming.append(self._copier.submit(self._producer.take))
            self._left -= 1


@contextmanager
def open_feed(
    plan: FeedPlan, workload: Workload, *, reopen: OpenWorkload, total: int, pin_memory: bool
) -> Iterator[Feed]:
    """A feed of `total` batches as planned; its producers end with the block.

    Args:
        plan: From `plan_feed`.
        workload: What this process makes batches from.
        reopen: What a producer opens the same workload with; pickled.
        total: Batches in all.
        pin_memory: For copies to a CUDA device that do not wait.
    """
    if plan.mode is Mode.IN_PROCESS:
        yield BeforeTheClock(InProcess(workload, pin_memory=pin_memory))
        return
    slots = plan.producers * _SLOTS_PER_PRODUCER
    with Producer(reopen, total=total, workers=plan.producers, slots=slots, pin_memory=pin_memory) as producer:
        if plan.mode is Mode.BEFORE:
            yield BeforeTheClock(producer)
            return
        feed = DuringTraining(producer, total=total)
        try:
            yield feed
        finally:
            feed.close()


def pinned(batch: Batch) -> Batch:
    """A copy in pinned memory, from which a CUDA device copies without anybody waiting."""
    batch.features.length_per_key()  # cached here and carried along; asked of ids on the device it would wait for them
    return Batch(batch.dense.pin_memory(), batch.features.pin_memory(), batch.labels.pin_memory())
