"""A device that does nothing before it must, played by the CPU: what is queued on a stream beside is done last of all.

A copy that nobody waits for, or memory that is written again too early, shows as a wrong number.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from systems.freq_cache.cache import staging
from systems.freq_cache.tiers.layout import RowLayout

RUNNING = threading.RLock()


class Stream:
    """Work in order. The one that computes does it at once, any other when an event behind it is waited for."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.work: list[Callable[[], object]] = []
        self.done = 0

    def wait_event(self, event: "Event") -> None:
        if self is COMPUTE:
            event.come()
        else:
            self.work.append(event.come)

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> "Event":
        event = Event()
        event.record(self)
        return event

    def run(self, until: int) -> None:
        with RUNNING, _disable_current_modes():
            while self.done < until:
                self.done += 1
                self.work[self.done - 1]()
                self.work[self.done - 1] = object  # lets go of tensors


class Event:
    def __init__(self, blocking: bool = False) -> None:
        self.blocking = blocking

    def record(self, stream: Stream) -> None:
        self.stream, self.at = stream, len(stream.work)

    def come(self) -> None:
        self.stream.run(self.at)

    def synchronize(self) -> None:
        WAITS.append(threading.get_ident())
        self.come()


COMPUTE = Stream()
WAITS: list[int] = []
"""The thread of every wait of the host for an event."""
_HERE = threading.local()
"""The stream that this thread queues on, if not the one that computes."""
USERS: dict[int, list[Stream]] = {}
"""Streams by the address of a record buffer on the device: first the one that it was made on, then those recorded."""
_LATER = (torch.ops.aten.copy_.default, torch.ops.aten.index_select.out)


class _Queued(TorchDispatchMode):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op not in _LATER:
            return op(*args, **kwargs)
        self._stream.work.append(lambda: op(*args, **kwargs))
        return kwargs.get("out", args[0]) if op._schema.returns else None


@contextmanager
def _on(stream: Stream) -> Iterator[None]:
    before, _HERE.stream = getattr(_HERE, "stream", COMPUTE), stream
    try:
        with _Queued(stream):
            yield
    finally:
        _HERE.stream = before


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the cache take the CPU for a device that has streams."""
    cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        stream=_on,
        device=lambda _: nullcontext(),
        current_stream=lambda _: COMPUTE,
    )

    def empty(*shape: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return torch.empty(*shape, **options)

    USERS.clear()
    WAITS.clear()
    room = RowLayout.empty

    def records(self: RowLayout, n: int, *, pin: bool = False, device: torch.device | None = None) -> Tensor:
        made = room(self, n, device=device)
        if device is not None:
            USERS[made.data_ptr()] = [getattr(_HERE, "stream", COMPUTE)]
        return made

    namespace = SimpleNamespace(**{**vars(torch), "cuda": cuda, "empty": empty})
    monkeypatch.setattr(staging, "torch", namespace)
    monkeypatch.setattr(staging, "_has_streams", lambda _: True)
    monkeypatch.setattr(RowLayout, "empty", records)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda self, stream: USERS.setdefault(self.data_ptr(), []).append(stream)
    )
