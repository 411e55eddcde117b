"""Batches are announced, planned one step ahead on a thread of their own, and moved when they are looked up."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torchrec import KeyedJaggedTensor

from systems.freq_cache.cache import Bags, Cache, Planned

Outcome = TypeVar("Outcome")


class PlanningFailed(RuntimeError):
    """Planning a batch ahead of time failed; the cause says why."""


@dataclass
class _Coming:
    """A batch that is not looked up yet.

    Attributes:
        features: What will be looked up, or another object with the same ids.
        parts, bags: Its features and its ids, for each cache.
        changes: It will be trained.
        announced: Done once the planners know of it.
        planned: Its plan in each cache, once planning has begun, and when planning ended: what can be sent ahead was
            sent after that.
        abandoned: Nobody will look it up.
    """

    features: KeyedJaggedTensor
    parts: list[KeyedJaggedTensor]
    bags: list[Bags]
    changes: bool
    announced: Future[None] | None = None
    planned: Future[tuple[list[Planned], float]] | None = None
    abandoned: bool = False

    def is_again(self, other: "_Coming") -> bool:
        """Whether this is another batch with other objects: it was moved to a device, say, or its keys permuted."""
        same = all(
            np.array_equal(own.ids.values, its.ids.values) and np.array_equal(own.offsets, its.offsets)
            for own, its in zip(self.bags, other.bags, strict=True)
        )
        return same and self.changes <= other.changes


class Pipeline:
    """The announced batches of several caches, in the order in which they will be looked up.

    A batch is planned as soon as `look_ahead - 1` batches behind it are announced. That is one step before it is looked
    up, so its rows are read from the slow tier while the batch before it trains. A batch that nobody announced is
    served all the same: what was announced before it is withdrawn, and announced anew when its turn comes.

    Args:
        caches: The caches.
        split: Finds the features of each cache in a batch.
        look_ahead: Batches that may be announced beyond the one in hand.
        executor: Of the one thread that talks to the planners; None: the calling thread does.
    """

    def __init__(
        self,
        caches: Sequence[Cache],
        *,
        split: Callable[[KeyedJaggedTensor], list[KeyedJaggedTensor]],
        look_ahead: int,
        executor: Executor | None,
    ) -> None:
        self._caches = caches
        self.split = split
        self._window = max(look_ahead - 1, 0)
        self._executor = executor
        self._coming: deque[_Coming] = deque()
        self._half_moved: _Coming | None = None
        self._failure: Exception | None = None

    @property
    def announced(self) -> int:
        """Batches announced and not yet looked up."""
        return sum(not coming.abandoned for coming in self._coming)

    def abandon(self) -> None:
        """Nobody looks up what is announced: the next call forgets it. Any thread may call this, and a finalizer."""
        for coming in tuple(self._coming):
            coming.abandoned = True

    def announce(self, features: KeyedJaggedTensor) -> None:
        """Announce the batch that comes behind all others, and plan those whose turn that makes it.

        Raises:
            ValueError: the caches cannot serve such features; nothing was announced.
        """
        self._forget_abandoned()
        self._coming.append(self._batch(features))
        self._announce_all()
        if self._half_moved is not None:
            return  # staging has room for two batches
        for position, coming in enumerate(self._coming):
            if coming.planned is None and len(self._coming) - 1 - position >= self._window:
                self._plan(coming)

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
        self._forget_abandoned()
        half_moved = self._half_moved
        again = half_moved is not None and half_moved.features is features
        known = again or any(waiting.features is features for waiting in self._coming)
        unannounced = None if known else self._batch(features)  # refused before anything is touched
        if unannounced is not None and self._coming and unannounced.is_again(self._coming[0]):
            self._coming[0].features, self._coming[0].parts = features, unannounced.parts
            unannounced = None
        for cache in self._caches:
            cache.finish(for_lookup=True)
        if any(coming is half_moved for coming in self._coming):
            self.withdraw()  # it failed half-way, and may have moved rows of batches that come before that one
        elif half_moved is not None:
            planned = self._move(half_moved)
            if again:
                return planned, self._parts(half_moved)
        if unannounced is not None:
            self.withdraw(before_lookup=True)
            start = time.perf_counter()
            self._announce(unannounced, here=True)
            self._plan(unannounced, here=True)
            return self._move(unannounced, start), unannounced.parts
        if self._coming[0].features is not features:
            raise RuntimeError("batches must be looked up in the order in which they were announced")
        if torch.is_grad_enabled() and not self._coming[0].changes:
            self.withdraw()
            self._coming.popleft()
            raise RuntimeError("a batch announced under torch.no_grad() is now to be trained: announce it again")
        start = time.perf_counter()
        self._announce_all()
        coming = self._coming.popleft()
        if coming.planned is None:
            self._plan(coming)
        return self._move(coming, start), self._parts(coming)

    def withdraw(self, *, before_lookup: bool = False) -> None:
        """Move the rows of every planned batch, and forget the announced batches that are not planned.

        They stay in the line, and are announced to the planners anew when their turn comes. `before_lookup`: batches in
        flight may wait on, unless there are rows to move.

        Raises: as `move`.
        """
        self._check_open()
        if self._failure is not None:
            raise self._failed() from self._failure
        moves = self._half_moved is not None or any(coming.planned is not None for coming in self._coming)
        if moves or not before_lookup:
            for cache in self._caches:
                cache.finish()
        if self._half_moved is not None:
            self._move(self._half_moved)
        for coming in self._coming:
            if coming.announced is not None:
                refused = coming.announced.exception()  # waits; raised when the batch is looked up
                if coming.planned is not None and (refused is None or refused is self._failure):
                    for cache, planned in zip(self._caches, self._move(coming), strict=True):
                        cache.writer.moved(planned.plan.batch)
            coming.announced = coming.planned = None
        for cache in self._caches:
            cache.withdraw()

    def _check_open(self) -> None:
        if not self._caches:
            raise RuntimeError("the collection was closed: build another one")

    def _forget_abandoned(self) -> None:
        self._check_open()
        if any(coming.abandoned for coming in self._coming):
            self.withdraw(before_lookup=True)
            self._coming = deque(coming for coming in self._coming if not coming.abandoned)

    def _batch(self, features: KeyedJaggedTensor) -> _Coming:
        parts = self.split(features)
        bags = [cache.bags(part) for cache, part in zip(self._caches, parts, strict=True)]
        return _Coming(features, parts, bags, torch.is_grad_enabled())

    def _parts(self, coming: _Coming) -> list[KeyedJaggedTensor]:
        """The features of each cache, with their weights as they are now."""
        return coming.parts if coming.features.weights_or_none() is None else self.split(coming.features)

    def _announce_all(self) -> None:
        for coming in self._coming:
            if coming.announced is None:
                self._announce(coming)

    def _announce(self, coming: _Coming, *, here: bool = False) -> None:
        pairs = list(zip(self._caches, coming.bags, strict=True))

        def announce() -> None:
            for cache, bags in pairs:
                cache.check(bags)
            self._guarded(tell_planners)

        def tell_planners() -> None:
            for cache, bags in pairs:
                cache.announce(bags, changes=coming.changes)

        coming.announced = self._run(announce, here)

    def _plan(self, coming: _Coming, *, here: bool = False) -> None:
        """Plan a batch that was announced."""
        announced = coming.announced
        pairs = list(zip(self._caches, coming.bags, strict=True))

        def plan() -> tuple[list[Planned], float]:
            if announced is not None:
                announced.result()
            planned = self._guarded(lambda: [cache.plan(bags) for cache, bags in pairs])
            end = time.perf_counter()
            for cache, one in zip(self._caches, planned, strict=True):
                with suppress(Exception):  # `move` tries again, and raises it
                    cache.send(one)
            return planned, end

        coming.planned = self._run(plan, here)

    def _run(self, task: Callable[[], Outcome], here: bool) -> Future[Outcome]:
        """Run a task on the thread that talks to the planners, or `here` and at once."""
        if self._executor is not None and not here:
            return self._executor.submit(task)
        future: Future[Outcome] = Future()
        try:
            future.set_result(task())
        except Exception as error:
            future.set_exception(error)
        return future

    def _move(self, coming: _Coming, start: float | None = None) -> list[Planned]:
        """Move the rows of a batch once it is planned. `start`: since when that is waited for."""
        start = time.perf_counter() if start is None else start
        self._half_moved = coming  # from here on: whatever ends the wait, its plan is to be carried out
        try:
            found, planned_at = self._outcome(coming)
        except Exception:
            self._half_moved = None  # there is no plan
            raise
        end, waited = time.perf_counter(), self._caches[0].traffic
        waited.planning_wait_s += max(min(planned_at, end) - start, 0.0)
        waited.fetch_wait_s += end - max(planned_at, start)
        for cache, planned in zip(self._caches, found, strict=True):
            cache.move(planned)
        self._half_moved = None
        return found

    def _guarded(self, task: Callable[[], Outcome]) -> Outcome:
        """Change the planners, unless an earlier change failed: that one may be half done."""
        if self._failure is not None:
            raise self._failure
        try:
            return task()
        except Exception as error:
            self._failure = error
            raise
        except BaseException as error:
            self._failure = RuntimeError(f"{type(error).__name__} in the middle of it")
            raise

    def _outcome(self, coming: _Coming) -> tuple[list[Planned], float]:
        if coming.planned is not None:
            try:
                return coming.planned.result()
            except Exception as error:
                if error is not self._failure:
                    raise  # an id outside its table: no planner was told of the batch
        raise self._failed() from self._failure

    def _failed(self) -> PlanningFailed:
        return PlanningFailed(
            f"planning a batch failed ({type(self._failure).__name__}: {self._failure}): the cache no longer knows "
            "which rows it holds; load what was saved last into a new one"
        )
