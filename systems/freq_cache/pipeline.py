"""Batches are announced, planned ahead and sent on threads of their own, and moved when they are looked up."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

import torch
from torchrec import KeyedJaggedTensor

from systems.freq_cache.batches import Coming, known_behind, versions_of
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.cache.mover import Planned
from systems.freq_cache.cache.plan import Distinct, Ids
from systems.in_flight import InFlight
from systems.threads import Task, Worker, interrupts_deferred


class PlanningFailed(RuntimeError):
    """Planning a batch failed, or was interrupted; the cause says why."""


class Pipeline:
    """The announced batches of several caches, in the order in which they will be looked up.

    A batch is planned as soon as `known_behind(look_ahead)` batches after it are announced. That is `PLANNED_AHEAD`
    steps before its lookup, or `look_ahead` if that is less. The sending thread sends it after its plan, and once the
    batch two before it was moved, so its rows are read from the slow tier while those batches train. An unannounced
    batch is served too: the batches announced before it are withdrawn, and announced again later.

    An exception may end any call half-way, an interrupt at any instruction. State is updated after the work is done, so
    unfinished work is repeated, and a batch stays in the queue until its rows are moved. Only planners cannot resume a
    change half-way. So the planning thread, which is not interrupted, changes them, or interrupts are deferred; if a
    change still ends half-way, every later call is refused.

    Args:
        split: Splits a batch into the features of each cache.
        planning, sending: The threads that plan and send; None: the calling thread does both.
        finding: The thread that finds the distinct rows of batches; None: the one that plans.
    """

    def __init__(
        self,
        caches: Sequence[Cache],
        *,
        split: Callable[[KeyedJaggedTensor], list[KeyedJaggedTensor]],
        look_ahead: int,
        lookups_per_backward: int,
        finding: Worker | None,
        planning: Worker | None,
        sending: Worker | None,
    ) -> None:
        self._caches = caches
        self.split = split
        self._window = known_behind(look_ahead)
        self._finding, self._planning, self._sending = finding, planning, sending
        self.in_flight = InFlight(
            lookups_per_backward, remedy=", or build with lookups_per_backward for as many as you need"
        )
        self.refused = False
        """Whether the last lookup ended after its rows had moved and returned nothing: the next batch may have been
        planned without those before it, and may take their slots."""
        self._coming: deque[Coming] = deque()
        self._withdrawing = False
        self._chosen = False
        self._changing = False
        self._failure: Exception | None = None

    @property
    def announced(self) -> int:
        """Batches announced and not yet looked up."""
        return len([coming for coming in self._coming if not coming.abandoned])

    def abandon(self) -> None:
        """Mark announced batches as abandoned: the next call forgets them. Thread-safe, also in a finalizer."""
        for coming in tuple(self._coming):
            coming.abandoned = True

    def warm_up(self) -> None:
        """Fill the caches with the rows that their policies rank highest. Only the first call does anything."""

        def choose() -> None:
            if self._chosen:
                return  # by the task of a call that was interrupted
            with self._change():
                for cache in self._caches:
                    cache.choose_first_rows()
                self._chosen = True

        if not self._chosen:
            self._run_and_check(choose)
        for cache in self._caches:
            cache.fill()

    def announce(self, features: KeyedJaggedTensor) -> None:
        """Announce a batch after all others, and plan the batches that are now due.

        Raises:
            ValueError: the caches cannot serve such features; nothing was announced. Bags and ids: see `move`.
            OSError, WriteBackFailed: the slow tier failed for a batch whose lookup has failed before; as for `move`.
        """
        self._forget_abandoned()
        self._coming.append(self._batch(features))
        self._announce_all()
        for coming in islice(self._coming, max(len(self._coming) - self._window, 0)):
            self._plan(coming)
        self._send_ahead(0)

    def move(self, features: KeyedJaggedTensor) -> tuple[list[Planned], list[KeyedJaggedTensor]]:
        """Have the caches hold the rows of a batch that is looked up now. After an error the call may be repeated.

        Returns:
            What was planned for it in each cache, and its features for each.

        Raises:
            RuntimeError: the batch was announced behind another one, or announced as not to be trained and is.
            ValueError: the caches cannot serve such features.
            IndexError: an id is outside its table.
            OSError, WriteBackFailed: the slow tier failed.
            PlanningFailed: anything else that happened while it was planned; the caches cannot be used any more.
        """
        coming = self._first_in_line(features)
        self._finish(for_lookup=True)
        if not coming.abandoned:
            self._announce_all()
        coming.abandoned = True  # if this call ends early, the next one forgets the batch
        plans = self._plans_of(coming)
        for cache, planned in zip(self._caches, plans, strict=True):
            cache.mover.move(planned, cache.traffic)
        # with the weights as they are now
        parts = coming.parts if features.weights_or_none() is None else self.split(features)
        self._send_ahead(1)
        self.refused = True  # until the lookup returns
        self._coming.popleft()
        return plans, parts

    def _plans_of(self, coming: Coming) -> list[Planned]:
        """Plans of the next batch, one per cache. The training thread waits for the planning thread or plans itself."""
        announcing, planning, sending = self._announce(coming), self._plan(coming), self._send(coming)
        self._timed("planning_wait_s", planning.wait)
        self._timed("fetch_wait_s", sending.wait)
        if coming.planned is None:
            if self._failure is not None:
                self._check()
            if isinstance(announcing.error, IndexError | ValueError):
                self._coming.popleft()
            elif announcing.error is not None:
                coming.forget_plan()  # a repetition tries again, and before it those behind it are withdrawn
                self._withdrawing = True
            raise announcing.error or planning.error or RuntimeError("a batch was not planned")
        return coming.planned

    def withdraw(self, *, before_lookup: bool = False) -> None:
        """Move the rows of every planned batch, and forget the announced batches that are not planned.

        They stay in the line, and are announced to the planners anew when their turn comes. Batches in flight are
        finished, and their backward is refused. `before_lookup`: they may wait on, unless there are rows to move.

        Raises: as `move`.
        """
        for worker in (self._finding, self._planning, self._sending):  # what is sent was planned before
            if (self._coming or not self._chosen) and worker is not None:
                worker.submit(lambda: None).wait()  # for all that it has to do
        self._check()
        planned = [coming for coming in self._coming if coming.planned is not None]
        if planned or not before_lookup or any(cache.overflow is not None for cache in self._caches):
            self._finish(waiting_too=not before_lookup)
        # until all are moved, because a later one may have taken slots of an earlier one, and the others are forgotten
        self._withdrawing = any(coming.told for coming in self._coming)
        for coming in planned:
            for cache, plan in zip(self._caches, coming.planned or [], strict=True):
                cache.mover.move(plan, cache.traffic)
                cache.writer.moved(plan.plan.batch)

        def forget() -> None:
            with self._change():
                for cache in self._caches:
                    cache.withdraw()
                for coming in self._coming:
                    coming.forget_plan()

        if self._withdrawing:
            self._run_and_check(forget)
        self._withdrawing = False

    def _finish(self, *, for_lookup: bool = False, waiting_too: bool = False) -> None:
        """Finish the last batches, whose backward may be refused from here on; see `InFlight.expire`."""
        apart = self.refused or any(cache.overflow is not None for cache in self._caches)
        self.in_flight.expire(for_lookup=for_lookup and not apart, waiting_too=waiting_too)
        self.refused = False
        for cache in self._caches:
            cache.finish()

    def _first_in_line(self, features: KeyedJaggedTensor) -> Coming:
        """The batch that is looked up now, which may have been tried before. The caches are not changed for it yet."""
        if self._withdrawing or self._failure is not None:
            self.withdraw()
        if self._coming and self._coming[0].written_to:
            abandoned, self._coming[0].abandoned = self._coming[0].abandoned, True
            if not abandoned:
                raise RuntimeError(
                    "the ids of the batch announced next were overwritten since: give every batch memory of its own "
                    "until it is looked up. The announcement is forgotten"
                )
            self._forget_abandoned()
        if not (self._coming and self._coming[0].features is features):
            known = any(waiting.features is features and not waiting.abandoned for waiting in self._coming)
            unannounced = None if known else self._batch(features)  # refused before anything is touched
            self._forget_abandoned()
            if unannounced is not None and self._coming and unannounced.is_again(self._coming[0]):
                again = self._coming[0]
                again.features, again.parts, again.versions = features, unannounced.parts, unannounced.versions
            elif unannounced is not None:
                self.withdraw(before_lookup=True)
                unannounced.abandoned = True
                self._coming.appendleft(unannounced)
            elif self._coming[0].features is not features:
                raise RuntimeError("batches must be looked up in the order in which they were announced")
        coming = self._coming[0]
        if torch.is_grad_enabled() and not coming.changes:
            self.withdraw()
            self._coming.popleft()
            raise RuntimeError("a batch announced under torch.no_grad() is now to be trained: announce it again")
        return coming

    def _forget_abandoned(self) -> None:
        if self._withdrawing or self._failure is not None or self.announced < len(self._coming):
            self.withdraw(before_lookup=True)
            self._coming = deque(coming for coming in self._coming if not coming.abandoned)

    def _batch(self, features: KeyedJaggedTensor) -> Coming:
        return Coming(features, self.split(features), torch.is_grad_enabled(), versions_of(features))

    def _announce_all(self) -> None:
        for coming in self._coming:
            self._announce(coming)

    def _announce(self, coming: Coming) -> Task[None]:
        """Have the planners told of a batch, unless that was done. What is wrong with its ids is the task's error."""

        def find() -> list[tuple[Ids, Distinct]]:
            return [cache.distinct(part) for cache, part in zip(self._caches, coming.parts, strict=True)]

        def announce() -> None:
            if not coming.told:
                found = find() if finding is None else finding.result()
                coming.ids = [ids for ids, _ in found]
                with self._change():
                    for cache, (_, distinct) in zip(self._caches, found, strict=True):
                        cache.announce(distinct, changes=coming.changes)
                    coming.told = True

        if coming.announcing is None:
            finding = None if self._finding is None else self._finding.submit(find)
            coming.announcing = self._run(announce, self._planning, "planning_wait_s")
        return coming.announcing

    def _plan(self, coming: Coming) -> Task[None]:
        """Have a batch planned, unless that was done or the planners do not know of it."""

        def plan() -> None:
            if coming.planned is None and coming.told:
                announced = zip(self._caches, coming.ids or [], strict=True)
                with self._change():
                    coming.planned = [cache.plan(ids, changes=coming.changes) for cache, ids in announced]

        if coming.planning is None:
            coming.planning = self._run(plan, self._planning, "planning_wait_s")
        return coming.planning

    def _send(self, coming: Coming) -> Task[None]:
        """Have a batch sent after its plan, unless that was done."""
        planning = self._plan(coming)

        def send() -> None:
            planning.wait()
            for cache, planned in zip(self._caches, coming.planned or [], strict=False):
                with suppress(Exception):  # `move` tries again, and raises it
                    cache.mover.send(planned)

        if coming.sending is None:
            coming.sending = self._run(send, self._sending, "fetch_wait_s")
        return coming.sending

    def _send_ahead(self, moved: int) -> None:
        """Have those batches sent for which `BatchMover` has room: the current one and the next of those not moved."""
        for coming in tuple(islice(self._coming, moved, moved + 2)):
            if coming.planning is None:
                break
            self._send(coming)

    def _run(self, work: Callable[[], None], worker: Worker | None, counter: str | None = None) -> Task[None]:
        """Have a thread do some work; without one, do it now. `counter`: as in `_timed`."""
        if worker is not None:
            return worker.submit(work)
        task = Task(work)
        self._timed(counter, task.run)
        if task.error is not None and not isinstance(task.error, Exception):
            raise task.error
        return task

    def _timed(self, counter: str | None, work: Callable[[], None]) -> None:
        """Call a function that works, or waits for a thread. `counter`: of waits of training, which gets its time."""
        start, counted = time.perf_counter(), self._caches[0].traffic
        work()
        if counter is not None:
            setattr(counted, counter, getattr(counted, counter) + time.perf_counter() - start)

    def _run_and_check(self, change: Callable[[], None]) -> None:
        """Change the planners while nothing else does, and return when that is done."""
        self._run(change, self._planning).wait()
        self._check()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """A block that changes the planners; it is not begun if an earlier one ended half-way."""
        with interrupts_deferred():
            if self._failure is None and self._changing:
                self._failure = RuntimeError("it was interrupted")
            if self._failure is not None:
                raise self._failure
            self._changing = True
            try:
                yield
            except Exception as error:
                self._failure = error
                raise
            self._changing = False

    def _check(self) -> None:
        """Refuse to go on after a change that ended half-way. The planning thread has nothing to do.

        Raises:
            PlanningFailed: there was one.
            RuntimeError: a backward ended half-way.
        """
        self.in_flight.check()
        if self._failure is None and self._changing:
            self._failure = RuntimeError("it was interrupted")
        if self._failure is not None:
            raise PlanningFailed(
                f"planning a batch failed ({type(self._failure).__name__}: {self._failure}): the cache no longer knows "
                "which rows it holds; load what was saved last into a new one"
            ) from self._failure
