"""Lookups whose backward may still come."""

import threading
import weakref
from collections import deque
from collections.abc import Iterable

from torch import Tensor


class _Lookup:
    """One lookup. Its autograd graph alone keeps it alive.

    Attributes:
        thread: That on which backward has come to the rows.
        updated: Backward has updated them.
    """

    thread: int | None = None
    updated = False


class InFlight:
    """The last lookups: as many as may come before one backward. Only their backward is let through.

    Backward updates the rows where they were at the lookup. A graph that was retained is refused once they may be
    elsewhere.

    Args:
        lookups: How many may come before one backward.
        remedy: What else to do about a lookup that waits for its backward, behind a comma.
    """

    def __init__(self, lookups: int, *, remedy: str = "") -> None:
        self._lookups = lookups
        self._remedy = remedy
        self._last: deque[weakref.ref[_Lookup]] = deque()

    def looked_up(self, pooled: Tensor) -> None:
        """Note what the kernel that updates the rows in its backward has returned."""
        lookup = _Lookup()
        note = weakref.ref(lookup)
        self._last.append(note)
        if pooled.grad_fn is None:
            return  # nothing is trained

        def refuse_if_late(*_: object) -> None:
            if note not in self._last:
                raise RuntimeError(
                    "backward came too late: since this lookup another one came, or rows were saved, loaded or read, "
                    "and they may lie elsewhere now. Look the batch up again, and call backward before all these"
                )
            lookup.thread, lookup.updated = threading.get_ident(), False

        def note_update(*_: object) -> None:
            lookup.updated = True  # this function keeps `lookup` alive

        pooled.grad_fn.register_prehook(refuse_if_late)
        pooled.grad_fn.register_hook(note_update)

    @property
    def pending(self) -> bool:
        """Whether a lookup waits for its backward."""
        return bool(_waiting(self._last))

    def expire(self, *, for_lookup: bool = False, waiting_too: bool = False) -> None:
        """Refuse the backward of lookups before this call from here on: their rows may move.

        Args:
            for_lookup: Another lookup comes. As many before it as may share its backward are let through.
            waiting_too: Also where backward has not come yet: after Ctrl-C, say, it never will.

        Raises:
            RuntimeError: one of them waits for its backward, or its backward is running on another thread.
        """
        late = list(self._last)[: max(len(self._last) - (self._lookups - 1 if for_lookup else 0), 0)]
        here = (None, threading.get_ident())  # backward on this thread does not run now: it was interrupted
        if any(lookup.thread not in here or not waiting_too for lookup in _waiting(late)):
            raise RuntimeError(
                "the batch looked up before this call still waits for its backward: call backward first, drop what the "
                f"lookup returned, or look up under torch.no_grad() what is not trained on{self._remedy}"
            )
        for _ in late:
            self._last.popleft()


def _waiting(notes: Iterable["weakref.ref[_Lookup]"]) -> list[_Lookup]:
    """Those whose graph is alive and whose backward has not updated the rows."""
    return [lookup for lookup in (note() for note in notes) if lookup is not None and not lookup.updated]
