"""Copies between host and device beside the work of the device. On a CPU, where both are one, nothing is copied.

The device is that of the cache, whichever is the current one. Where the host must wait for it, it sleeps.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BUFFERS = 4
"""Of pinned memory for numbers: more than there are batches on their way."""


@dataclass(frozen=True)
class H2DCopy:
    """Tensors on their way to the device."""

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event | None

    def take(self) -> tuple[Tensor, ...]:
        """The tensors, for work queued from here on; the host does not wait."""
        if self.event is not None:
            compute = torch.cuda.current_stream(self.tensors[0].device)
            compute.wait_event(self.event)
            for tensor in self.tensors:
                tensor.record_stream(compute)  # made on another stream: its memory must outlive its use on this one
        return self.tensors


@dataclass(frozen=True)
class D2HCopy:
    """A tensor on its way to the host. `home`: the device writes it to the slow tier by itself."""

    tensor: Tensor
    event: torch.cuda.Event | None
    home: bool = False

    def wait(self) -> Tensor:
        """The tensor, once it is there."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensor


class Transfer:
    """Copies on two side streams of a CUDA device, one each way. On a CPU every method returns what it was given."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.empty(0, device=device).device  # with its number, whatever device is current later
        self.pins = _has_streams(device)
        """Whether what crosses should lie in pinned memory; from pageable memory a copy waits for the device."""
        self._in = torch.cuda.Stream(self.device) if self.pins else None
        self._out = torch.cuda.Stream(self.device) if self.pins else None
        empty: tuple[Tensor, torch.cuda.Event | None] = (torch.empty(0, dtype=torch.int32), None)
        self._buffers = [empty] * _BUFFERS
        self._turn = 0
        self._packing = threading.Lock()

    def to_device(self, tensor: Tensor) -> Tensor:
        """Send a tensor. Returns it for work queued from here on."""
        if self._in is None:
            return tensor
        with torch.cuda.device(self.device):
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
        with torch.cuda.stream(self._in):
            arrival = H2DCopy((self._sent(pinned),), blocking_event(self._in))
        return arrival.take()[0]

    def pack(self, *numbers: NDArray[np.int32]) -> H2DCopy:
        """Send int32 arrays in one copy, out of pinned memory that is used again; from any thread."""
        if self._in is None:
            return H2DCopy(tuple(map(torch.from_numpy, numbers)), None)
        sizes = [array.size for array in numbers]
        with self._packing, torch.cuda.stream(self._in):
            buffer = self._buffer(sum(sizes))
            np.concatenate(numbers, out=buffer.numpy())
            sent = self._sent(buffer)
            event = blocking_event(self._in)
            self._buffers[self._turn] = (self._buffers[self._turn][0], event)
            self._turn = (self._turn + 1) % _BUFFERS
        return H2DCopy(sent.split(sizes), event)

    def to_host(self, tensor: Tensor) -> D2HCopy:
        """Send a tensor that the current stream made."""
        with self.outgoing() as stream:
            if stream is None:
                return D2HCopy(tensor, None)
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)
            return D2HCopy(host, blocking_event(stream))

    @contextmanager
    def incoming(self, *, behind_outgoing: bool = False) -> Iterator[torch.cuda.Stream | None]:
        """What is queued inside goes to the stream of what comes in. None: there are no streams."""
        if self._in is None or self._out is None:
            yield None
            return
        if behind_outgoing:
            self._in.wait_stream(self._out)
        with torch.cuda.stream(self._in):
            yield self._in

    @contextmanager
    def outgoing(self) -> Iterator[torch.cuda.Stream | None]:
        """The same for what leaves, behind all that the current stream has by now."""
        if self._out is None:
            yield None
            return
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            yield self._out

    def _sent(self, pinned: Tensor) -> Tensor:
        return torch.empty(pinned.shape, dtype=pinned.dtype, device=self.device).copy_(pinned, non_blocking=True)

    def _buffer(self, numbers: int) -> Tensor:
        """Pinned memory from which nothing is copied any more, int32 `[numbers]`."""
        buffer, sent = self._buffers[self._turn]
        if sent is not None:
            sent.synchronize()
        if buffer.numel() < numbers:
            buffer = torch.empty(numbers + numbers // 4, dtype=torch.int32, pin_memory=True)
            self._buffers[self._turn] = (buffer, None)
        return buffer[:numbers]


def blocking_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event behind all that a stream has by now, for which the host waits asleep, not spinning."""
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


def _has_streams(device: torch.device) -> bool:
    return device.type == "cuda"
