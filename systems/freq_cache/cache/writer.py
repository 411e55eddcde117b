"""Writes rows back to the slow tier on a background thread, and tracks which of them the tier holds already."""

from collections import deque
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from systems.freq_cache.cache.transfer import D2HCopy
from systems.freq_cache.tiers import SlowTier
from systems.threads import Task, Worker


class WriteBackFailed(RuntimeError):
    """Changed rows could not be written to the slow tier. They are kept in memory, and `flush()` tries again."""


@dataclass
class _Write:
    batch: int
    rows: Tensor
    records: D2HCopy
    stored: bool = False
    task: Task[None] | None = None


class Writer:
    """Write-backs in the order of their batches. Without a worker each is done before `write` returns.

    Only one thread stores rows: the worker's, or without one the training thread. It starts with the oldest write that
    is not stored, so a write that failed, or was interrupted, is tried again before any later one.
    """

    def __init__(self, tier: SlowTier, worker: Worker | None) -> None:
        self._tier = tier
        self._worker = worker
        self._writes: deque[_Write] = deque()  # only the training thread adds and removes
        self._moved = -1

    def write(self, rows: Tensor, records: D2HCopy, *, batch: int) -> None:
        """Write records, `[n, width]`, over rows, int64 `[n]`."""
        write = _Write(batch, rows, records)
        if records.home and self._writes and self._writes[-1].records.home:
            write.batch = self._writes[-1].batch  # the device writes in order: the last one stands for all from there
            self._writes[-1] = write
            return
        self._writes.append(write)
        if records.home:
            return  # readers of the rows wait for the device, by `wait` or by stream order
        if self._worker is None:
            self._store_now(write)
        else:
            write.task = self._worker.submit(partial(self._store, write))

    def moved(self, batch: int) -> None:
        """Note that a batch was moved: all of its write-backs were passed to `write`. Failed ones: see `wait`."""
        self._moved = batch
        while self._writes and self._writes[0].stored:
            self._writes.popleft()
        oldest = self._writes[0] if self._writes else None
        if oldest is not None and oldest.task is not None and oldest.task.done and not oldest.stored:
            self.wait(oldest.batch)

    @property
    def landed(self) -> int:
        """Last batch up to which the slow tier holds all write-backs, or will when the device reads them."""
        moved = self._moved  # before the writes: what is added meanwhile belongs to a later batch
        late = [write.batch for write in tuple(self._writes) if not (write.records.home or write.stored)]
        return min([moved, *(batch - 1 for batch in late)])

    def wait(self, batch: int | None = None) -> None:
        """Wait until the tier holds all rows that batches up to this one wrote back. Failed writes are tried once more.

        Raises:
            WriteBackFailed: it failed again; its cause says why.
        """
        while self._writes and (batch is None or self._writes[0].batch <= batch):
            write = self._writes[0]
            if write.records.home:
                write.records.wait()
            else:
                if write.task is not None:
                    write.task.wait()
                self._store_now(write)
            self._writes.popleft()

    @property
    def pending_bytes(self) -> int:
        """Host bytes of records that are not written yet."""
        return sum(write.records.tensor.nbytes for write in tuple(self._writes))

    def _store_now(self, write: _Write) -> None:
        """Return once a write and those before it are stored."""
        if write.stored:
            return
        try:
            if self._worker is None:
                self._store(write)
                return
            write.task = self._worker.submit(partial(self._store, write))
            write.task.result()
        except OSError as error:
            raise WriteBackFailed(
                "changed rows could not be written to the slow tier; they are kept in memory: remove the cause and "
                "call flush()"
            ) from error

    def _store(self, last: _Write) -> None:
        """Store all writes that are not stored yet up to this one, the oldest first."""
        for write in tuple(self._writes):
            if not (write.stored or write.records.home):
                self._tier.write(write.rows, write.records.wait())
                write.stored = True
            if write is last:
                return
