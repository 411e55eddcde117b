"""Batches that were looked up and still wait for their backward."""

import weakref
from collections import deque
from collections.abc import Callable

from torch import Tensor


class _Waiting:
    """A batch that was looked up and has not had its backward. Its autograd graph keeps it alive."""

    def __init__(self) -> None:
        self.arrived = False

    def arrive(self, gradient: Tensor) -> None:
        """A gradient came: the update of the slots follows within the same backward."""
        self.arrived = True


class InFlight:
    """The last lookups, of which some wait for their backward; `lookups` may come before one backward."""

    def __init__(self, lookups: int) -> None:
        self._last: deque[Callable[[], _Waiting | None]] = deque(maxlen=lookups)

    def looked_up(self, pooled: Tensor) -> None:
        """Note what a batch was given."""
        waiting = _Waiting()
        if pooled.requires_grad:
            pooled.register_hook(waiting.arrive)
        self._last.append(weakref.ref(waiting))

    def wait(self, *, for_lookup: bool = False) -> bool:
        """Whether a batch waits for its backward. `for_lookup`: one that another lookup is not allowed to pass."""
        full = len(self._last) == self._last.maxlen
        last = (list(self._last)[:1] if full else []) if for_lookup else self._last
        found = [batch() for batch in last]
        return any(batch is not None and not batch.arrived for batch in found)
