"""Copies between host and device on side streams, and the staging buffers of records. On a CPU nothing is copied.

The device is the cache's, whichever is current. A host thread that waits for the device sleeps, without spinning.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from systems.freq_cache.tiers.slow_tier import PinnedTier, RowLayout, SlowTier


@dataclass(frozen=True)
class H2DCopy:
    """Tensors, parts of one, that are being copied to the device."""

    tensors: tuple[Tensor, ...]
    whole: Tensor
    event: torch.cuda.Event | None

    def take(self, compute: torch.cuda.Stream | None) -> tuple[Tensor, ...]:
        """The tensors, for work that a stream queues after this call; the host does not wait."""
        if compute is not None and self.event is not None:
            compute.wait_event(self.event)
            self.whole.record_stream(compute)  # made on another stream: its memory must outlive its use on this one
        return self.tensors


@dataclass(frozen=True)
class D2HCopy:
    """A tensor that is being copied to the host. `home`: the device writes it to the slow tier directly."""

    tensor: Tensor
    event: torch.cuda.Event | None
    home: bool = False

    def wait(self) -> Tensor:
        """Wait for the copy, and return the tensor."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensor


class Transfer:
    """Copies on two side streams of a CUDA device, one per direction. On a CPU every method returns its argument."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.empty(0, device=device).device  # with its number, whatever device is current later
        self.pins = device.type == "cuda"
        """Whether host memory of copies should be pinned; a copy from pageable memory waits for the device."""
        self._in = torch.cuda.Stream(self.device) if self.pins else None
        self._out = torch.cuda.Stream(self.device) if self.pins else None
        self._last: torch.cuda.Stream | None = None

    def to_device(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device, on its current stream; the host does not wait."""
        if self._in is None:
            return tensor
        with torch.cuda.device(self.device):
            return tensor.pin_memory().to(self.device, non_blocking=True)

    def pack(self, *numbers: NDArray[np.int32]) -> H2DCopy:
        """Copy int32 arrays to the device in one copy on the H2D stream; thread-safe."""
        if self._in is None:
            return H2DCopy(tuple(map(torch.from_numpy, numbers)), torch.empty(0), None)
        sizes = [array.size for array in numbers]
        with self.incoming:
            # torch reuses pinned memory once the copies from it have ended
            pinned = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=True)
            np.concatenate(numbers, out=pinned.numpy())
            sent = pinned.to(self.device, non_blocking=True)
            return H2DCopy(sent.split(sizes), sent, blocking_event(self._in))

    def to_host(self, tensor: Tensor, compute: torch.cuda.Stream | None = None) -> D2HCopy:
        """Copy a tensor to the host, after all work that a stream has queued; None: the current one."""
        with self.outgoing(compute or self.compute()) as stream:
            if stream is None:
                return D2HCopy(tensor, None)
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)
            return D2HCopy(host, blocking_event(stream))

    def compute(self) -> torch.cuda.Stream | None:
        """The device's current stream, on which the calling thread computes; None on a CPU, which has no streams.

        Asking torch for it takes longer than queueing work on it: ask once, and pass it on.
        """
        return None if self._in is None else torch.cuda.current_stream(self.device.index)

    def follow(self) -> torch.cuda.Stream | None:
        """As `compute`, for work on slots: that stream waits for the one of the last call, if it is another one.

        A pipeline may train on one stream, and announce batches on that of its copies.
        """
        now = self.compute()
        if now is not None:
            if self._last is not None and self._last != now:
                now.wait_stream(self._last)
            self._last = now
        return now

    @property
    def incoming(self) -> AbstractContextManager[torch.cuda.Stream | None]:
        """A block in which the H2D stream is current, and its device: pinning memory initializes the current one."""
        return nullcontext() if self._in is None else _again(self._in)

    def outgoing(self, compute: torch.cuda.Stream | None) -> AbstractContextManager[torch.cuda.Stream | None]:
        """A block in which the D2H stream is current, after all work that a stream has queued."""
        if self._out is None or compute is None:
            return nullcontext()
        self._out.wait_stream(compute)
        return _again(self._out)

    def wait_for_outgoing(self) -> None:
        """Let the H2D stream wait for all work that the D2H stream has queued."""
        if self._in is not None and self._out is not None:
            self._in.wait_stream(self._out)


def _again(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The same stream as another object, which notes what was current before the block: several threads enter one."""
    return torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def blocking_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event after all work queued on a stream; the host waits for it asleep, without spinning."""
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


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
        with transfer.incoming:
            self._device = self._host = tier.layout.empty(rows, device=transfer.device)
            if transfer.pins:
                self._host = tier.layout.empty(0 if self._pinned else rows, pin=True)
        self._sent: torch.cuda.Event | None = None
        self._used: torch.cuda.Event | None = None

    def add(self, rows: Tensor, sent: Tensor, *, place: int) -> None:
        """Read rows into the buffer from record `place` on and copy them to the device, which reads pinned rows itself.

        `rows`: int64 `[n]` on the host, at most the free capacity. `sent`: the same, int32 on the device, valid on the
        incoming stream. Where an OSError says that they could not be read, nothing was added.
        """
        room, pinned = slice(place, place + rows.numel()), self._pinned
        if pinned is None:
            if self._sent is not None and not place:
                self._sent.synchronize()
            self._tier.read(rows, self._host[room])
        if pinned is not None and pinned.by_kernel:  # the outgoing stream may still be writing these rows
            self._transfer.wait_for_outgoing()
        with self._transfer.incoming as stream:
            if stream is not None and self._used is not None:
                stream.wait_event(self._used)
            if pinned is not None:
                pinned.gather(sent, self._device[room])
            elif stream is not None:
                self._device[room].copy_(self._host[room], non_blocking=True)
            if stream is not None:
                self._sent = blocking_event(stream)

    def take(self, records: int, compute: torch.cuda.Stream | None) -> Tensor:
        """All `records` records on the device, for work that a stream queues after this call."""
        if compute is not None and self._sent is not None:
            compute.wait_event(self._sent)
            self._device.record_stream(compute)  # made on another stream: its memory must outlive its use on this one
        return self._device[:records]

    def clear(self, compute: torch.cuda.Stream | None) -> None:
        """Allow reuse of the buffer once the work that a stream has queued by now is done."""
        if compute is not None and self._sent is not None:
            self._used = compute.record_event()


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

    def room(self, rows: int, compute: torch.cuda.Stream | None) -> Tensor:
        """Memory for `rows` records, which a stream fills and the caller then passes to `send` or `scatter`."""
        self.batch = -1
        if self._device is None:
            return self._layout.empty(rows)
        if compute is not None and self._left is not None:
            compute.wait_event(self._left)
        return self._device[:rows]

    def send(self, records: Tensor, compute: torch.cuda.Stream | None) -> D2HCopy:
        """Copy records of `room` to the host."""
        leaving = self._transfer.to_host(records, compute)
        self._left, self._lot = leaving.event, records
        return leaving

    def again(self, numbers: Tensor) -> Tensor:
        """Copies of the records at these indices, int32 `[n]`, of the last chunk."""
        return self._lot.index_select(0, numbers)

    def scatter(self, records: Tensor, tier: PinnedTier, rows: Tensor, compute: torch.cuda.Stream | None) -> D2HCopy:
        """Let the device write records of `room` to rows of a pinned tier, int32 `[n]` on the device."""
        with self._transfer.outgoing(compute) as stream:
            tier.scatter(rows, records)
            if stream is not None:
                rows.record_stream(stream)
                records.record_stream(stream)
                self._left = blocking_event(stream)
        return D2HCopy(records[:0], self._left, home=True)
