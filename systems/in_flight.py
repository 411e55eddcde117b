"""Lookups whose backward may still come."""

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd import Variable


class _Lookup:
    """One lookup. Its autograd graph alone keeps it alive.

    Attributes:
        thread: That on which backward has come to what was looked up.
        updated: That backward has ended, so it has updated the rows.
        outputs: Parts of what was looked up that backward comes to one by one.
    """

    thread: int | None = None
    updated = False
    outputs = 0


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
        self._by_half = False
        """Backward has come to one of several outputs, and has not ended."""

    def looked_up(self, outputs: Sequence[Tensor]) -> None:
        """Note what a lookup gives to its caller.

        The joined rows of all kernels, where they are joined: an interrupt is raised in this check, and where there is
        one such check, no backward ends when some kernels have updated their rows and others have not.
        """
        lookup = _Lookup()
        note = weakref.ref(lookup)

        def come_in_time(*_: object) -> None:  # keeps `lookup` alive
            # first of all: whoever expires this lookup at the same time either sees it, or has removed the note
            lookup.thread, lookup.updated = threading.get_ident(), False
            if note not in self._last:
                raise RuntimeError(
                    "backward came too late: since this lookup another one came, or rows were saved, loaded or read, "
                    "and they may lie elsewhere now. Look the batch up again, and call backward before all these"
                )
            if sum(waiting.outputs for waiting in _waiting(self._last)) > 1:
                self._by_half = True
            # no functions of Python, in which an interrupt would be raised
            for changed, name, value in ((lookup, "updated", True), (self, "_by_half", False)):
                Variable._execution_engine.queue_callback(partial(setattr, changed, name, value))

        self._last.append(note)
        for output in outputs:
            if output.grad_fn is not None:
                lookup.outputs += 1
                output.grad_fn.register_prehook(come_in_time)

    @property
    def pending(self) -> bool:
        """Whether a lookup waits for its backward."""
        return bool(_waiting(self._last))

    def check(self) -> None:
        """Refuse to go on after a backward that ended half-way.

        Raises:
            RuntimeError: there was one.
        """
        running = torch._C._current_graph_task_id() >= 0 or any(
            lookup.thread not in (None, threading.get_ident()) for lookup in _waiting(self._last)
        )
        if self._by_half and not running:
            raise RuntimeError(
                "backward ended half-way: of several lookups, or tables, it has updated the rows of some alone. Load "
                "what was saved last into a new one"
            )

    def expire(self, *, for_lookup: bool = False, waiting_too: bool = False) -> None:
        """Refuse the backward of lookups before this call from here on: their rows may move.

        Args:
            for_lookup: Another lookup comes. As many before it as may share its backward are let through.
            waiting_too: Also where backward has not come yet: after Ctrl-C, say, it never will.

        Raises:
            RuntimeError: one of them waits for its backward, or its backward is running; or as `check`.
        """
        self.check()
        late = list(self._last)[: max(len(self._last) - (self._lookups - 1 if for_lookup else 0), 0)]
        self._refuse_waiting(late, waiting_too=waiting_too)
        for _ in late:
            self._last.popleft()
        try:
            self._refuse_waiting(late, waiting_too=waiting_too)  # backward may have come on another thread
        except RuntimeError:
            self._last.extendleft(reversed(late))
            raise

    def _refuse_waiting(self, late: Sequence["weakref.ref[_Lookup]"], *, waiting_too: bool) -> None:
        here: list[int | None] = [None]
        if torch._C._current_graph_task_id() < 0:  # else a hook of backward calls this
            here.append(threading.get_ident())  # backward on this thread does not run now: it was interrupted
        if any(lookup.thread not in here or not waiting_too for lookup in _waiting(late)):
            raise RuntimeError(
                "the batch looked up before this call still waits for its backward: call backward first (and not this "
                "from its hooks), drop what the lookup returned, or look up under torch.no_grad() what is not trained "
                f"on{self._remedy}"
            )


def _waiting(notes: Iterable["weakref.ref[_Lookup]"]) -> list[_Lookup]:
    """Those whose graph is alive and whose backward has not updated the rows."""
    return [lookup for lookup in (note() for note in notes) if lookup is not None and not lookup.updated]
