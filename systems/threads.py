"""Threads that work beside the training thread, and leave the cores to it.

A thread that runs one torch operation on several cores opens an OpenMP team of its own, and keeps it. libgomp then has
more threads than there are cores, and none of them spins at barriers any more, those of the training thread included:
every operation waits to be woken, even while the helper sleeps. So threads beside training are `Worker`s or those of
a `pool_of`, which compute alone.

Python raises KeyboardInterrupt on the main thread alone, between any two instructions. Work that must not be left half
done runs on a `Worker`, or inside `interrupts_deferred`.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar, cast

import torch

T = TypeVar("T")

_here = threading.local()
_setting = threading.Lock()


def compute_alone() -> None:
    """Have torch compute on the calling thread alone, which is new, and as before on every other one, begun or not.

    `torch.set_num_threads` changes the calling thread, and what threads begin with that start to compute later.
    """
    with _setting:
        others = torch.get_num_threads()  # of a thread that is new: what threads begin with
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(others,))
        restoring.start()
        restoring.join()


def cores() -> int:
    """Threads that may share what this thread has to do. A `Worker` has as many as torch computed with at its start."""
    return getattr(_here, "cores", None) or torch.get_num_threads()


_LOOK_S = 1.0
"""After so long a thread that waits for a task looks again: another one that waited may have been interrupted."""


class Task(Generic[T]):
    """Work that was given to a `Worker`.

    Attributes:
        done: It has ended.
        error: The exception that ended it.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._work: Callable[[], T] | None = work
        self._value: T | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """Do the work. The worker's thread calls this once."""
        try:
            if self._work is not None:
                self._value = self._work()
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

    def result(self) -> T:
        """What the work returned, once it has ended. Raises what it raised."""
        self.wait()
        if self.error is not None:
            raise self.error
        return cast(T, self._value)


def pool_of(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool of so many threads, of which each computes alone."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=compute_alone)


class Worker:
    """A thread that does what it is given in that order, and computes alone. It keeps alive only what it has to do."""

    def __init__(self, name: str) -> None:
        self._tasks = SimpleQueue[Task[Any] | None]()
        given = self._tasks, torch.get_num_threads()
        self._thread = threading.Thread(target=_work_on, args=given, name=name, daemon=True)
        self._thread.start()
        self.submit(compute_alone).result()

    def submit(self, work: Callable[[], T]) -> Task[T]:
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


def _work_on(tasks: "SimpleQueue[Task[Any] | None]", cores: int) -> None:
    _here.cores = cores
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
