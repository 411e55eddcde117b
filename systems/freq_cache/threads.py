"""Threads that share the work on one large batch, and threads that work beside training.

Compiled loops release the GIL, so they run on several parts at the same time: of tables for the planner, of rows for
copies. There are as many threads as torch computes with, and the one that calls works too. It waits for all of them
before it goes on.

Python raises KeyboardInterrupt on the main thread alone, between any two instructions. Work that must not be left half
done runs on a `Worker`, or inside `interrupts_deferred`.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from queue import Empty, SimpleQueue
from types import FrameType

import torch


def parts_of(items: int, *, least: int) -> int:
    """On how many threads to work on so many items, if a thread is to have at least `least` of them."""
    return max(1, min(items // least, torch.get_num_threads()))


def in_parts(work: Callable[[int], None], parts: int) -> None:
    """Call `work(part)` for every part, 0 on this thread and the others on their own. Returns when all are done.

    Raises:
        BaseException: what the first part to fail raised.
    """
    if parts == 1:
        work(0)
        return
    others = [_executor().submit(work, part) for part in range(1, parts)]
    try:
        work(0)
    finally:
        for other in others:
            other.exception()  # waits for it
    for other in others:
        other.result()


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="cache-part")


def slices_of(sizes: Sequence[int], most: int = 2**31 - 1) -> list[slice]:
    """Stretches of so many, one behind the other, of which nothing lies beyond `most`."""
    ends = [min(end, most) for end in accumulate(sizes)]
    return [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]


_LOOK_S = 1.0
"""After so long a thread that waits for a task looks again: another one that waited may have been interrupted."""


class Task:
    """Work that was given to a `Worker`.

    Attributes:
        done: It has ended.
        error: The exception that ended it.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._work: Callable[[], None] | None = work
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """Do the work. The worker's thread calls this once."""
        try:
            if self._work is not None:
                self._work()
        except BaseException as error:
            self.error = error
        self._work = None
        self.done = True
        self._running.release()

    def wait(self) -> None:
        """Return when the work has ended. An exception may end the wait at any instruction, and it may be repeated.

        `concurrent.futures` does not have that: an interrupt within its locks, which are Python's, leaves them locked.
        """
        while not self.done:
            if self._running.acquire(timeout=_LOOK_S):
                self._running.release()


class Worker:
    """A thread that does what it is given in that order. It keeps nothing alive but what it has to do."""

    def __init__(self, name: str) -> None:
        self._tasks = SimpleQueue[Task | None]()
        self._thread = threading.Thread(target=_work_on, args=(self._tasks,), name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> Task:
        """Have the thread do some work after all that it was given before."""
        task = Task(work)
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """End the thread after the task in hand, and wait for its end."""
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            self._tasks.put(None)
        if self._thread is not threading.current_thread():  # a finalizer may run on any thread
            self._thread.join()


def _work_on(tasks: "SimpleQueue[Task | None]") -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # else it would live until the next one comes


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Have Ctrl-C wait until the work inside is done: for milliseconds of work, never where it waits for a device."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # other threads are not interrupted; what is no function is not Python's to call later
        return
    came: list[FrameType | None] = []
    try:
        signal.signal(signal.SIGINT, lambda _number, frame: came.append(frame))
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])
