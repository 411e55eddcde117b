"""Lookups whose backward may still come."""

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.autograd import Variable


class _Lookup:
    """One lookup. Its autograd graph alone keeps it alive.

    Attributes:
        thread: That on which backward has come to what was looked up.
        updated: That backward has ended, so it has updated the rows.
    """

    thread: int | None = None
    updated = False

    def note_update(self) -> None:
        """Backward has ended."""
        self.updated = True


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

    def looked_up(self, outputs: Sequence[Tensor]) -> None:
        """Note what a lookup gives to its caller.

        The joined rows of all kernels, where they are joined: an interrupt is raised in this check, and no backward
        ends when some kernels have updated their rows and others have not.
        """
        lookup = _Lookup()
        note = weakref.ref(lookup)

        def come_in_time(*_: object) -> None:  # keeps `lookup` alive
            if note not in self._last:
                raise RuntimeError(
                    "backward came too late: since this lookup another one came, or rows were saved, loaded or read, "
                    "and they may lie elsewhere now. Look the batch up again, and call backward before all these"
                )
            lookup.thread, lookup.updated = threading.get_ident(), False
            Variable._execution_engine.queue_callback(lookup.note_update)

        self._last.append(note)
        for output in outputs:
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(come_in_time)

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
