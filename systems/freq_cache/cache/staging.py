"""Where records lie while they are between the slow tier and their slots. All of it is taken once, and used again."""

import torch
from torch import Tensor

from systems.freq_cache.cache.transfer import D2HCopy, Transfer, blocking_event
from systems.freq_cache.tiers import PinnedTier, RowLayout, SlowTier


class FetchStaging:
    """A place for records on their way in: in pinned memory, and on the device. On a CPU both are one.

    Records are added until it is full, taken, and `clear` makes room for others. What was there is overwritten when the
    device has used it: the device waits for that by itself, the host only for its copy to have left. How many there are
    knows the batch that they are of.
    """

    def __init__(self, rows: int, tier: SlowTier, transfer: Transfer) -> None:
        self.rows = rows
        self._tier = tier
        self._pinned = tier if isinstance(tier, PinnedTier) else None
        self._transfer = transfer
        # On the stream that writes it first: what freed this memory on another one may still use it. `incoming` names
        # the device, too: pinning would start another one.
        with transfer.incoming():
            self._device = self._host = tier.layout.empty(rows, device=transfer.device)
            if transfer.pins:
                self._host = tier.layout.empty(0 if self._pinned else rows, pin=True)
        self._sent: torch.cuda.Event | None = None
        self._used: torch.cuda.Event | None = None

    def add(self, rows: Tensor, sent: Tensor, *, place: int) -> None:
        """Read rows behind the `place` that are here, and send them to the device, which reads pinned rows by itself.

        Args:
            rows: int64 `[n]` on the host, no more than there is room for.
            sent: The same, int32 on the device, behind what has been queued on the stream of what comes in.
            place: How many records are here.

        Raises:
            OSError: they could not be read; nothing was added.
        """
        room, pinned = slice(place, place + rows.numel()), self._pinned
        if pinned is None:
            if self._sent is not None and not place:
                self._sent.synchronize()
            self._tier.read(rows, self._host[room])
        exchanges = pinned is not None and pinned.exchanges  # then rows may be on their way that left just before
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
        """So many records on the device, all that are here, for work queued from here on."""
        if self._sent is not None:
            compute = torch.cuda.current_stream(self._transfer.device)
            compute.wait_event(self._sent)
            self._device.record_stream(compute)  # made on another stream: its memory must outlive its use on this one
        return self._device[:records]

    def clear(self) -> None:
        """Make room; the work that uses what was taken has been queued."""
        if self._sent is not None:
            self._used = torch.cuda.current_stream(self._transfer.device).record_event()


class EvictStaging:
    """A place on the device for records on their way out, one lot at a time. On a CPU they lie where the host has them.

    The device does not overwrite a lot before it has left. Until then rows of it may be used again.

    Attributes:
        batch: Whose rows were sent last; -1: nobody's, or they were more than one lot.
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
        """For so many records, which are then to be sent."""
        self.batch = -1
        if self._device is None:
            return self._layout.empty(rows)
        if self._left is not None:
            torch.cuda.current_stream(self._transfer.device).wait_event(self._left)
        return self._device[:rows]

    def send(self, records: Tensor) -> D2HCopy:
        """Send what was written to the room to the host."""
        leaving = self._transfer.to_host(records)
        self._left, self._lot = leaving.event, records
        return leaving

    def again(self, numbers: Tensor) -> Tensor:
        """Copies of the records of these numbers, int32 `[n]`, among those sent last."""
        return self._lot.index_select(0, numbers)

    def scatter(self, records: Tensor, tier: PinnedTier, rows: Tensor) -> D2HCopy:
        """Have the device write what was written to the room to rows of a tier, int32 `[n]` on the device."""
        with self._transfer.outgoing() as stream:
            tier.scatter(rows, records)
            if stream is not None:
                rows.record_stream(stream)
                records.record_stream(stream)
                self._left = blocking_event(stream)
        return D2HCopy(records[:0], self._left, home=True)
