"""Copies of batches from a feed to the device, one step ahead, on a stream of their own."""

import time
from collections import deque

import torch

from suite.run.cell.feed import Feed, OnBatch
from workloads.batch import Batch

_Sent = tuple[Batch, torch.cuda.Event | None]
"""A batch, and the event after its copy."""


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
        with torch.cuda.stream(self._stream):
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
