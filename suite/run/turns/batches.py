"""Batches that systems in one process share: each is made once, before the clock, and kept until all took it."""

from __future__ import annotations

from copy import copy

from suite.run.cell.feed import OnBatch, pinned
from workloads.batch import Batch, Split, Workload


class SharedBatches:
    """Batches 0, 1, 2, ... of the training split, each made once, before the clock, and kept until all took it."""

    def __init__(self, workload: Workload, *, pin_memory: bool) -> None:
        self._workload = workload
        self._pin_memory = pin_memory
        self._made: dict[int, Batch] = {}
        self._taken: dict[str, int] = {}

    def rewind(self) -> None:
        """Forget all readers."""
        self._made.clear()
        self._taken.clear()

    def feed(self, reader: str) -> _Shared:
        """What a new reader takes its batches from, beginning with the first. All come before any takes one."""
        self._taken[reader] = 0
        return _Shared(self, reader)

    def fill(self, reader: str, count: int, on_batch: OnBatch) -> None:
        """Have the next `count` batches of a reader ready."""
        for index in range(self._taken[reader], self._taken[reader] + count):
            if index not in self._made:
                batch = self._workload.batch(index, Split.TRAIN)
                self._made[index] = pinned(batch) if self._pin_memory else batch
                on_batch()

    def take(self, reader: str) -> Batch:
        """A reader's next batch."""
        index = self._taken[reader]
        batch = self._made[index]
        self._taken[reader] += 1
        if min(self._taken.values()) > index:
            del self._made[index]
        # features keep what they computed of themselves, such as offsets: every reader computes that anew
        return Batch(batch.dense, copy(batch.features), batch.labels)


class _Shared:
    """A reader of shared batches. A `Feed`."""

    def __init__(self, batches: SharedBatches, reader: str) -> None:
        self._batches = batches
        self._reader = reader

    def fill(self, count: int, on_batch: OnBatch = lambda: None) -> None:
        """Make what is missing of the next `count` batches."""
        self._batches.fill(self._reader, count, on_batch)

    def take(self) -> Batch:
        """The next batch."""
        return self._batches.take(self._reader)
