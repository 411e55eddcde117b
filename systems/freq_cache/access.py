"""Access to a collection: one thread at a time, in the process that built it; and its end."""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from types import FrameType
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.tiers.commits import Commits
from systems.threads import Worker, not_on_a_worker

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Access:
    """Refuses threads and processes that may not use a collection now.

    Not a lock, which an interrupt could leave locked. The mark is a thread and a frame on its stack. A mark that an
    interrupt leaves behind is ignored, because its frame is no longer on the stack.
    """

    def __init__(self) -> None:
        self.closed = False
        self._process = os.getpid()
        self.inside: dict[str, tuple[int, FrameType]] = {}

    def check(self) -> None:
        """Refuse a collection that cannot be used here.

        Raises:
            RuntimeError: it was closed, or built in another process.
        """
        if self.closed:
            raise RuntimeError("the collection was closed: build another one")
        if not self.in_its_process:
            raise RuntimeError(
                "the collection was built in another process, and a forked one has neither its threads nor files of "
                "its own, and torch may hang in it: start processes by spawning, and build another collection there"
            )

    def enter(self) -> bool:
        """Mark the calling thread as the user of the collection. Returns whether one of its methods made this call.

        Raises:
            RuntimeError: another thread uses it, or this thread is inside another call to it; or as `check`.
        """
        self.check()
        mine = threading.get_ident(), sys._getframe(1)
        found = self.inside.setdefault("by", mine)
        if found is mine:
            return False
        here = found[0] == mine[0]
        stack = _stack(mine[1].f_back if here else sys._current_frames().get(found[0]))
        if found[1] not in stack:  # an interrupt left the mark behind
            self.inside["by"] = mine
            return False
        if not here:
            raise RuntimeError(
                "another thread is using the collection: call it from one thread at a time, and wait for its backward"
            )
        between = stack[: stack.index(found[1])]
        if not all(frame.f_globals.get("__name__", "").startswith("systems.") for frame in between):
            raise RuntimeError(
                "the collection is in the middle of a call, which this one interrupts: a signal handler, a finalizer "
                "or a policy cannot call it. Note there what to do, or raise, and call it from the training loop"
            )
        return True

    @property
    def in_its_process(self) -> bool:
        """Whether this is the process that built the collection."""
        return os.getpid() == self._process


def _stack(frame: FrameType | None) -> list[FrameType]:
    """A frame and those below it."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def one_at_a_time(
    method: Callable[Concatenate[Any, Arguments], Answer],
) -> Callable[Concatenate[Any, Arguments], Answer]:
    """Decorate a method: it begins with `enter` of its object's `_access`, and its end removes the mark."""

    @wraps(method)
    def call(self: Any, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:  # noqa: ANN401
        if torch.is_inference_mode_enabled():  # tensors created now are kept, and may be trained later
            with torch.inference_mode(False), torch.no_grad():
                return call(self, *arguments, **named)
        if self._access.enter():
            return method(self, *arguments, **named)  # called by another method, which leaves
        try:
            return method(self, *arguments, **named)
        finally:
            self._access.inside.clear()

    return call


def end(access: Access, workers: Mapping[str, Worker], caches: list[Cache], commits: Commits | None) -> None:
    """Stop the threads, close tiers and directory, and clear the list of caches, which frees their rows.

    In a forked process it does nothing: they belong to the parent.
    """
    access.closed = True
    if not access.in_its_process:
        return

    def stop() -> None:
        for worker in workers.values():
            worker.close()
        for cache in caches:
            cache.tier.close()
        if commits is not None:
            commits.close()
        caches.clear()

    not_on_a_worker(stop)
