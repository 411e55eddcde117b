"""Batches that were looked up and still wait for their backward."""

import weakref
from collections import deque
from collections.abc import Callable
from threading import Event

from torch import Tensor


class InFlight:
    """The last lookups, of which some wait for their backward; `lookups` may come before one backward."""

    def __init__(self, lookups: int) -> None:
        self._last: deque[Callable[[], Event | None]] = deque(maxlen=lookups)

    def looked_up(self, pooled: Tensor) -> None:
        """Note what a batch was given."""
        arrived = Event()  # set with the gradient: the update of the slots follows within the same backward
        if pooled.requires_grad:
            pooled.register_hook(lambda gradient: arrived.set())  # so the autograd graph keeps it alive
        self._last.append(weakref.ref(arrived))

    def wait(self, *, for_lookup: bool = False) -> bool:
        """Whether a batch waits for its backward. `for_lookup`: one that another lookup is not allowed to pass."""
        full = len(self._last) == self._last.maxlen
        last = (list(self._last)[:1] if full else []) if for_lookup else self._last
        found = [batch() for batch in last]
        return any(arrived is not None and not arrived.is_set() for arrived in found)
