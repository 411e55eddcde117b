"""Staging buffers for records between the slow tier and their slots. They are allocated once and reused."""

import torch
from torch import Tensor

from systems.freq_cache.cache.transfer import D2HCopy, Transfer, blocking_event
from systems.freq_cache.tiers import PinnedTier, RowLayout, SlowTier


class FetchStaging:
    """Buffer for fetched records, in pinned memory and on the device. On a CPU both are the same.

    `add` appends records until the buffer is full, `take` returns them, `clear` allows reuse. The incoming stream waits
    for the consumer's event before it overwrites the device buffer; the host waits for the H2D event before it
    overwrites the pinned one. The batch counts the records (`Planned.rows_read`).
    """

    def __init__(self, rows: int, tier: SlowTier, transfer: Transfer) -> None:
        self.rows = rows
        self._tier = tier
        self._pinned = tier if isinstance(tier, PinnedTier) else None
        self._transfer = transfer
        # Allocated on the stream that writes it first: another stream that freed this memory may still use it.
        # `incoming` also sets the current device: pinning memory initializes the current one.
        with transfer.incoming():
            self._device = self._host = tier.layout.empty(rows, device=transfer.device)
            if transfer.pins:
                self._host = tier.layout.empty(0 if self._pinned else rows, pin=True)
        self._sent: torch.cuda.Event | None = None
        self._used: torch.cuda.Event | None = None

    def add(self, rows: Tensor, sent: Tensor, *, place: int) -> None:
        """Read rows into the buffer from record `place` on and copy them to the device, which reads pinned rows itself.

        Args:
            rows: int64 `[n]` on the host, at most the free capacity.
            sent: The same rows, int32 on the device, valid on the incoming stream.
            place: Number of records in the buffer.

        Raises:
            OSError: they could not be read; nothing was added.
        """
        room, pinned = slice(place, place + rows.numel()), self._pinned
        if pinned is None:
            if self._sent is not None and not place:
                self._sent.synchronize()
            self._tier.read(rows, self._host[room])
        exchanges = pinned is not None and pinned.exchanges  # then the outgoing stream may still be writing these rows
        with self._transfer.incoming(behind_outgoing=exchanges) as stream:
            if stream is not None and self._used is not None:
                stream.wait_event(self._used)
            if pinned is not None:
                pinned.gather(sent, self._device[room])
            elif stream is not None:
                self._device[room].copy_(self._host[room], non_blocking=True)
            if stream is not None:
                self._sent = blocking_event(stream)

    def take(self, records: int) -> Tensor:
        """All `records` records on the device, for work that the current stream queues after this call."""
        if self._sent is not None:
            compute = torch.cuda.current_stream(self._transfer.device)
            compute.wait_event(self._sent)
            self._device.record_stream(compute)  # made on another stream: its memory must outlive its use on this one
        return self._device[:records]

    def clear(self) -> None:
        """Allow reuse of the buffer once the work that the current stream has queued by now is done."""
        if self._sent is not None:
            self._used = torch.cuda.current_stream(self._transfer.device).record_event()


class EvictStaging:
    """Device buffer for evicted records, one chunk at a time. On a CPU they are in host memory.

    The device does not overwrite a chunk before its copy has ended. Until then its rows may be fetched again.

    Attributes:
        batch: Number of the batch whose rows were copied last; -1: none, or they took more than one chunk.
    """

    def __init__(self, rows: int, layout: RowLayout, transfer: Transfer) -> None:
        self.rows = rows
        self._layout = layout
        self._transfer = transfer
        self._device = layout.empty(rows, device=transfer.device) if transfer.pins else None
        self._left: torch.cuda.Event | None = None
        self._lot = layout.empty(0)
        self.batch = -1

    def room(self, rows: int) -> Tensor:
        """Memory for `rows` records, which the caller then passes to `send` or `scatter`."""
        self.batch = -1
        if self._device is None:
            return self._layout.empty(rows)
        if self._left is not None:
            torch.cuda.current_stream(self._transfer.device).wait_event(self._left)
        return self._device[:rows]

    def send(self, records: Tensor) -> D2HCopy:
        """Copy records of `room` to the host."""
        leaving = self._transfer.to_host(records)
        self._left, self._lot = leaving.event, records
        return leaving

    def again(self, numbers: Tensor) -> Tensor:
        """Copies of the records at these indices, int32 `[n]`, of the last chunk."""
        return self._lot.index_select(0, numbers)

    def scatter(self, records: Tensor, tier: PinnedTier, rows: Tensor) -> D2HCopy:
        """Let the device write records of `room` to rows of a pinned tier, int32 `[n]` on the device."""
        with self._transfer.outgoing() as stream:
            tier.scatter(rows, records)
            if stream is not None:
                rows.record_stream(stream)
                records.record_stream(stream)
                self._left = blocking_event(stream)
        return D2HCopy(records[:0], self._left, home=True)
