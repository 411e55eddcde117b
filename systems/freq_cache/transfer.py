"""Copies between host and device beside the work of the device. On a CPU, where both are one, nothing is copied."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Arrival:
    """Tensors on their way to the device."""

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event | None

    def take(self) -> tuple[Tensor, ...]:
        """The tensors, for work queued from here on; the host does not wait."""
        if self.event is not None:
            compute = torch.cuda.current_stream()
            compute.wait_event(self.event)
            for tensor in self.tensors:
                tensor.record_stream(compute)  # made on another stream: its memory must outlive its use on this one
        return self.tensors


@dataclass(frozen=True)
class Departure:
    """A tensor on its way to the host."""

    tensor: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """The tensor, once it is there."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensor


class Transfer:
    """Copies on two side streams of a CUDA device, one each way. On a CPU every method returns what it was given."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._in = torch.cuda.Stream(device) if self._cuda else None
        self._out = torch.cuda.Stream(device) if self._cuda else None

    @property
    def pins(self) -> bool:
        """Whether what crosses should lie in pinned memory; from pageable memory a copy waits for the device."""
        return self._cuda

    def to_device(self, *tensors: Tensor) -> Arrival:
        """Send tensors, from any thread."""
        if not self._cuda:
            return Arrival(tensors, None)
        with self._on(self._in):
            sent = tuple(t.pin_memory().to(self._device, non_blocking=True) for t in tensors)
            return Arrival(sent, torch.cuda.current_stream().record_event())

    def gather(self, records: Tensor, rows: Tensor) -> Arrival:
        """Have the device read rows, int64 `[n]` on the host, of records that lie on the host and that it sees."""
        if not self._cuda:
            return Arrival((records.index_select(0, rows),), None)
        with self._on(self._in):
            where = rows.pin_memory().to(self._device, non_blocking=True)
            return Arrival((records.index_select(0, where),), torch.cuda.current_stream().record_event())

    def to_host(self, tensor: Tensor) -> Departure:
        """Send a tensor that the current stream made."""
        if not self._cuda:
            return Departure(tensor, None)
        made = torch.cuda.current_stream().record_event()
        with self._on(self._out):
            stream = torch.cuda.current_stream()
            stream.wait_event(made)
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)
            return Departure(host, stream.record_event())

    def _on(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream) if stream is not None else nullcontext()
