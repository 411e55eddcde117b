"""Lookups whose backward is pending."""

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd import Variable


class _Lookup:
    """One lookup, kept alive by its autograd graph only.

    Attributes:
        thread: Id of the thread on which backward reached the lookup's output.
        updated: Whether that backward has ended and so updated the rows.
        outputs: Number of the lookup's output tensors that backward reaches one by one.
        weighted: Weights of the lookup get gradients, which are computed in backward from the rows as they then are.
    """

    thread: int | None = None
    updated = False
    outputs = 0
    weighted = False


class InFlight:
    """The most recent lookups, up to the number allowed before one backward. Backward of older ones is refused.

    Backward updates the slots that the rows had at the lookup. Backward through a retained graph is refused once the
    rows may have moved.

    Args:
        lookups: Number of lookups allowed before one backward.
        remedy: Further advice in the message about a lookup whose backward is pending, beginning with a comma.
    """

    def __init__(self, lookups: int, *, remedy: str = "") -> None:
        self._lookups = lookups
        self._remedy = remedy
        self._last: deque[weakref.ref[_Lookup]] = deque()
        self._by_half = False
        """Whether backward has reached one of several outputs and not ended."""

    def check_weights(self, weighted: bool) -> None:
        """Check before a lookup that no backward will compute gradients of weights from rows that another has changed.

        Raises:
            RuntimeError: a lookup waits for the same backward, and its weights or those of the next get gradients.
        """
        waiting = _waiting(self._last)
        if waiting and self._lookups > 1 and (weighted or any(lookup.weighted for lookup in waiting)):
            raise RuntimeError(
                "weights that require gradients need a backward for every lookup: with several, one would update the "
                "rows before another computes from them. Call backward first"
            )

    def looked_up(self, outputs: Sequence[Tensor], *, weighted: bool = False) -> None:
        """Register the tensors that a lookup returns to its caller. `weighted`: its weights require gradients.

        Pass the joined rows of all kernels, where they are joined: an interrupt is raised in the prehook, and with only
        one prehook no backward ends after some kernels have updated their rows and others have not.
        """
        lookup = _Lookup()
        lookup.weighted = weighted
        note = weakref.ref(lookup)

        def come_in_time(*_: object) -> None:  # keeps `lookup` alive
            if lookup.weighted and lookup.updated:
                raise RuntimeError(
                    "backward came a second time, and the first has changed the rows from which the gradients of the "
                    "weights are computed: look the batch up again, or detach its weights"
                )
            # set first: a thread that calls `expire` at the same time either sees it, or has removed the note
            lookup.thread, lookup.updated = threading.get_ident(), False
            if note not in self._last:
                raise RuntimeError(
                    "backward came too late: since this lookup another one came, or rows were saved, loaded or read, "
                    "and they may lie elsewhere now. Look the batch up again, and call backward before all these"
                )
            if sum(waiting.outputs for waiting in _waiting(self._last)) > 1:
                self._by_half = True
            # callbacks are not Python functions, in which an interrupt would be raised
            for changed, name, value in ((lookup, "updated", True), (self, "_by_half", False)):
                Variable._execution_engine.queue_callback(partial(setattr, changed, name, value))

        self._last.append(note)
        for output in outputs:
            if output.grad_fn is not None:
                lookup.outputs += 1
                output.grad_fn.register_prehook(come_in_time)

    @property
    def pending(self) -> bool:
        """Whether the backward of a lookup is pending."""
        return bool(_waiting(self._last))

    def check(self) -> None:
        """Check that no backward ended half-way.

        Raises:
            RuntimeError: one did: it updated the rows of some lookups or tables only.
        """
        if not self._by_half:
            return
        running = torch._C._current_graph_task_id() >= 0 or any(
            lookup.thread not in (None, threading.get_ident()) for lookup in _waiting(self._last)
        )
        if not running:
            raise RuntimeError(
                "backward ended half-way: of several lookups, or tables, it has updated the rows of some alone. Load "
                "what was saved last into a new one"
            )

    def expire(self, *, for_lookup: bool = False, waiting_too: bool = False) -> None:
        """Refuse from now on the backward of lookups before this call: their rows may move.

        Args:
            for_lookup: Another lookup follows. The last lookups that may share its backward are kept.
            waiting_too: Expire also lookups whose backward is pending: after Ctrl-C, for example, it never runs.

        Raises:
            RuntimeError: the backward of one of them is pending (unless `waiting_too`) or running; or as `check`.
        """
        self.check()
        late = list(self._last)[: max(len(self._last) - (self._lookups - 1 if for_lookup else 0), 0)]
        self._refuse_waiting(late, waiting_too=waiting_too)
        for _ in late:
            self._last.popleft()
        try:
            self._refuse_waiting(late, waiting_too=waiting_too)  # another thread may have started backward meanwhile
        except RuntimeError:
            self._last.extendleft(reversed(late))
            raise

    def _refuse_waiting(self, late: Sequence["weakref.ref[_Lookup]"], *, waiting_too: bool) -> None:
        waiting = _waiting(late)
        if not waiting:
            return
        here: list[int | None] = [None]
        if torch._C._current_graph_task_id() < 0:  # else a hook of backward calls this
            here.append(threading.get_ident())  # backward on this thread does not run now: it was interrupted
        if any(lookup.thread not in here or not waiting_too for lookup in waiting):
            raise RuntimeError(
                "the batch looked up before this call still waits for its backward: call backward first (and not this "
                "from its hooks), drop what the lookup returned, or look up under torch.no_grad() what is not trained "
                f"on{self._remedy if len(_waiting({*late, *self._last})) >= self._lookups else ''}"
            )


def _waiting(notes: Iterable["weakref.ref[_Lookup]"]) -> list[_Lookup]:
    """Lookups whose graph is alive and whose backward has not updated the rows."""
    return [lookup for note in notes if (lookup := note()) is not None and not lookup.updated]
