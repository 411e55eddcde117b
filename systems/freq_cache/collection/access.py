"""Who may use a collection: one thread at a time, in the process that built it, until it is closed."""

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Access:
    """Refuses whoever may not use a collection now.

    Not a lock: an interrupt could leave that locked. A mark that an interrupt leaves behind is that of the thread which
    was interrupted, and does not keep it out.
    """

    def __init__(self) -> None:
        self.closed = False
        self._process = os.getpid()
        self._inside: dict[str, int] = {}

    def check(self) -> None:
        """Refuse a collection that cannot be used here.

        Raises:
            RuntimeError: it was closed, or built in another process.
        """
        if self.closed:
            raise RuntimeError("the collection was closed: build another one")
        if os.getpid() != self._process:
            raise RuntimeError(
                "the collection was built in another process, and a forked one has neither its threads nor files of "
                "its own: build another collection here, or start processes by spawning"
            )

    def enter(self) -> bool:
        """Mark the calling thread as the one that uses the collection. Returns whether it was that before.

        Raises:
            RuntimeError: another thread is; or as `check`.
        """
        self.check()
        me, before = threading.get_ident(), len(self._inside)
        if self._inside.setdefault("thread", me) != me:
            raise RuntimeError(
                "another thread is using the collection: call it from one thread at a time, and wait for its backward"
            )
        return before > 0

    def leave(self) -> None:
        """Remove the mark."""
        self._inside.clear()

    @property
    def in_its_process(self) -> bool:
        """Whether this is the process that built the collection."""
        return os.getpid() == self._process


class _Guarded(Protocol):
    _access: Access


Self = TypeVar("Self", bound=_Guarded)


def one_at_a_time(
    method: Callable[Concatenate[Self, Arguments], Answer],
) -> Callable[Concatenate[Self, Arguments], Answer]:
    """Make of a method one that only a thread with access may call."""

    @wraps(method)
    def call(self: Self, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        if torch.is_inference_mode_enabled():  # what is made now is kept, and may be trained later
            with torch.inference_mode(False), torch.no_grad():
                return call(self, *arguments, **named)
        if self._access.enter():
            return method(self, *arguments, **named)  # called by another method, which leaves
        try:
            return method(self, *arguments, **named)
        finally:
            self._access.leave()

    return call
