"""Writes rows back to the slow tier beside training, and knows which of them the tier holds already."""

import threading
from collections import deque
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from systems.freq_cache.cache.transfer import Departure
from systems.freq_cache.tiers import SlowTier


class WriteBackFailed(RuntimeError):
    """Changed rows could not be written to the slow tier. They are kept in memory, and `flush()` tries again."""


@dataclass
class _Write:
    batch: int
    rows: Tensor
    records: Departure
    done: Future[None] | None = None

    @property
    def succeeded(self) -> bool:
        return self.done is not None and self.done.done() and self.done.exception() is None


class Writer:
    """Write-backs in the order of their batches. Without an executor each is done before `write` returns."""

    def __init__(self, tier: SlowTier, executor: Executor | None) -> None:
        self._tier = tier
        self._executor = executor
        self._writes: deque[_Write] = deque()
        self._lock = threading.Lock()  # of the two fields above and below, never held across a copy
        self._moved = -1

    def write(self, rows: Tensor, records: Departure, *, batch: int) -> None:
        """Write records, `[n, width]`, over rows, int64 `[n]`."""
        write = _Write(batch, rows, records)
        with self._lock:
            self._writes.append(write)
        if records.home:
            return  # whoever reads the rows waits for the device, by `wait` or by itself
        if self._executor is None:
            self._retry(write)
        else:
            write.done = self._executor.submit(self._store_in_order, write)

    def moved(self, batch: int) -> None:
        """A batch was moved: all that it writes back has been given to `write`. Failed ones: see `wait`."""
        with self._lock:
            self._moved = batch
            while self._writes and self._writes[0].succeeded:
                self._writes.popleft()
            failed = next((w for w in self._writes if w.done and w.done.done() and w.done.exception()), None)
        if failed is not None:
            self.wait(failed.batch)

    @property
    def landed(self) -> int:
        """The slow tier holds all rows that batches up to this one write back, or will when the device reads them."""
        with self._lock:
            late = [write for write in self._writes if not (write.records.home or write.succeeded)]
            return min([self._moved, *(write.batch - 1 for write in late)])

    def wait(self, batch: int | None = None) -> None:
        """Wait until the tier holds all rows that batches up to this one wrote back. Failed writes are tried once more.

        Raises:
            WriteBackFailed: it failed again; its cause says why.
        """
        while True:
            with self._lock:
                if not self._writes or (batch is not None and self._writes[0].batch > batch):
                    return
                write = self._writes[0]
            if write.done is None or (write.done.exception() is not None):  # waits for it
                self._retry(write)
            with self._lock:
                self._writes.popleft()

    @property
    def pending_bytes(self) -> int:
        """Host bytes of records that are not written yet."""
        with self._lock:
            return sum(write.records.tensor.nbytes for write in self._writes)

    def _retry(self, write: _Write) -> None:
        try:
            self._store(write)
        except OSError as error:
            raise WriteBackFailed(
                "changed rows could not be written to the slow tier; they are kept in memory: remove the cause and "
                "call flush()"
            ) from error
        write.done = Future()
        write.done.set_result(None)

    def _store_in_order(self, write: _Write) -> None:
        with self._lock:  # an earlier one that is tried again later may have the same rows
            earlier = takewhile(lambda one: one is not write, self._writes)
            if any(one.done and one.done.done() and one.done.exception() for one in earlier):
                raise OSError("an earlier write failed")
        self._store(write)

    def _store(self, write: _Write) -> None:
        records = write.records.wait()
        if not write.records.home:
            self._tier.write(write.rows, records)
