"""Batches are announced, planned one step ahead on a thread of their own, and looked up in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
from torchrec import KeyedJaggedTensor

from systems.freq_cache.cache import Bags, Cache, Prepared

Outcome = TypeVar("Outcome")


class PlanningFailed(RuntimeError):
    """Planning a batch ahead of time failed; the cause says why."""


@dataclass
class _Coming:
    """An announced batch.

    Attributes:
        features: The very object that will be looked up.
        bags: What it asks of each cache.
        changes: It will be trained.
        entered: The planners know of it, or soon will.
        prepared: What became of planning it, once that was asked for.
    """

    features: KeyedJaggedTensor
    bags: list[Bags]
    changes: bool
    entered: Future[None] | None = None
    prepared: Future[list[Prepared]] | None = None


class Pipeline:
    """The batches that are under way in some caches.

    A batch is planned as soon as `look_ahead - 1` batches behind it are announced: one step before it is looked up, so
    that its rows are read from the slow tier while the batch before it trains. A batch that nobody announced is
    served all the same; what was announced by then is planned anew when its turn comes.

    `executor` has one thread and plans; None: planning happens where it is asked for.
    """

    def __init__(self, caches: Sequence[Cache], *, look_ahead: int, executor: Executor | None) -> None:
        self._caches = caches
        self._window = max(look_ahead - 1, 0)
        self._executor = executor
        self._coming: deque[_Coming] = deque()
        self._unfinished: _Coming | None = None
        self._broken: Exception | None = None
        self._failure: Exception | None = None

    def announce(self, features: KeyedJaggedTensor, parts: Sequence[KeyedJaggedTensor]) -> None:
        """Tell of a coming batch, in order."""
        coming = _Coming(features, self._bags(parts), torch.is_grad_enabled())
        self._coming.append(coming)
        for earlier in self._coming:
            if earlier.entered is None:
                self._enter(earlier)
        for at, earlier in enumerate(self._coming):
            if earlier.prepared is None and len(self._coming) - 1 - at >= self._window:
                self._prepare(earlier)

    def take(self, features: KeyedJaggedTensor, parts: Sequence[KeyedJaggedTensor]) -> list[Prepared]:
        """Have the caches hold what a batch needs that is looked up now. If that fails, the same call may be repeated.

        Raises:
            RuntimeError: it was announced behind another one, or announced as not to be trained and is.
            IndexError: an id is outside its table.
            OSError, WriteBackFailed: the slow tier failed.
            PlanningFailed: anything else that happened while it was planned; the caches cannot be used any more.
        """
        for cache in self._caches:
            cache.settle()
        if any(coming is self._unfinished for coming in self._coming):
            self.settle()  # which had failed half-way: batches ahead of that one may have lost their rows
        if self._unfinished is not None:
            unfinished = self._unfinished
            prepared = self._apply(unfinished)
            if unfinished.features is features:
                return prepared
        if self._coming and self._coming[0].features is features:
            if torch.is_grad_enabled() and not self._coming[0].changes:
                self.settle()
                self._coming.popleft()
                raise RuntimeError("a batch announced under torch.no_grad() is now to be trained: announce it again")
            for later in self._coming:
                if later.entered is None:
                    self._enter(later)
            coming = self._coming.popleft()
            if coming.prepared is None:
                self._prepare(coming)
        else:
            if any(waiting.features is features for waiting in self._coming):
                raise RuntimeError("batches must be looked up in the order in which they were announced")
            self.settle()
            coming = _Coming(features, self._bags(parts), torch.is_grad_enabled())
            self._enter(coming, here=True)
            self._prepare(coming, here=True)
        return self._apply(coming)

    def settle(self) -> None:
        """Bring the caches to where planning has got, and have what is still announced planned anew later.

        Raises: as `take`.
        """
        if self._failure is not None:
            raise self._failed()
        for cache in self._caches:
            cache.settle()
        if self._unfinished is not None:
            self._apply(self._unfinished)
        for coming in self._coming:
            if coming.prepared is not None:
                with suppress(IndexError):  # heard of when the batch is looked up
                    for cache, prepared in zip(self._caches, self._apply(coming), strict=True):
                        cache.writer.executed(prepared.plan.batch)
            if coming.entered is not None:
                coming.entered.exception()  # waits for it
            coming.entered = coming.prepared = None
        for cache in self._caches:
            cache.planner.withdraw()

    def _apply(self, coming: _Coming) -> list[Prepared]:
        outcome = self._outcome(coming)
        self._unfinished = coming
        for cache, prepared in zip(self._caches, outcome, strict=True):
            cache.apply(prepared)
        self._unfinished = None
        return outcome

    @property
    def announced(self) -> int:
        """Batches announced and not yet looked up."""
        return len(self._coming)

    def _bags(self, parts: Sequence[KeyedJaggedTensor]) -> list[Bags]:
        return [cache.bags(part) for cache, part in zip(self._caches, parts, strict=True)]

    def _enter(self, coming: _Coming, *, here: bool = False) -> None:
        def enter() -> None:
            for cache, bags in zip(self._caches, coming.bags, strict=True):
                cache.check(bags)
            self._plan(enter_all)

        def enter_all() -> None:
            for cache, bags in zip(self._caches, coming.bags, strict=True):
                cache.enter(bags, changes=coming.changes)

        coming.entered = _run(enter, None if here else self._executor)

    def _prepare(self, coming: _Coming, *, here: bool = False) -> None:
        entered = coming.entered

        def prepare() -> list[Prepared]:
            if entered is None:
                raise AssertionError("a batch is entered before it is planned")
            entered.result()
            return self._plan(prepare_all)

        def prepare_all() -> list[Prepared]:
            return [cache.prepare(bags) for cache, bags in zip(self._caches, coming.bags, strict=True)]

        coming.prepared = _run(prepare, None if here else self._executor)

    def _plan(self, task: Callable[[], Outcome]) -> Outcome:
        """Do what changes a planner, unless that has failed before: what it left half done must not be gone on with."""
        if self._broken is not None:
            raise self._broken
        try:
            return task()
        except Exception as error:
            self._broken = error
            raise

    def _outcome(self, coming: _Coming) -> list[Prepared]:
        if self._failure is None and coming.prepared is not None:
            try:
                return coming.prepared.result()
            except Exception as error:
                if error is not self._broken:
                    raise  # an id outside its table: the planners never heard of the batch
                self._failure = error
        raise self._failed() from self._failure

    def _failed(self) -> PlanningFailed:
        failed = PlanningFailed(
            f"planning a batch failed ({type(self._failure).__name__}: {self._failure}): the cache no longer knows "
            "which rows it holds; load what was saved last into a new one"
        )
        failed.__cause__ = self._failure
        return failed


def _run(task: Callable[[], Outcome], executor: Executor | None) -> Future[Outcome]:
    """Run a task on an executor, or at once."""
    if executor is not None:
        return executor.submit(task)
    future: Future[Outcome] = Future()
    try:
        future.set_result(task())
    except Exception as error:
        future.set_exception(error)
    return future
