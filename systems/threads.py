"""Background threads that leave the cores to the training thread.

A thread that runs one torch operation on several cores opens an OpenMP team of its own, and keeps it. libgomp then has
more threads than there are cores, and none of them spins at barriers any more, those of the training thread included:
every operation waits to be woken, even while the background thread sleeps. So background threads are those of
`Worker`s: torch runs single-threaded on them.

Python raises KeyboardInterrupt on the main thread alone, between any two instructions, also within the locks of
`concurrent.futures`, which then stay locked. Work that must not be left half done runs on a `Worker`, or inside
`interrupts_deferred`.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar, cast

import torch

T = TypeVar("T")

_here = threading.local()
_setting = threading.Lock()


def compute_alone() -> None:
    """Make torch single-threaded on the calling thread, which is new; other threads keep their number, started or not.

    `torch.set_num_threads` changes the calling thread, and the default of threads that start to compute later.
    """
    with _setting:
        others = torch.get_num_threads()  # on a new thread this is the default of all threads
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(others,))
        restoring.start()
        restoring.join()


def not_on_a_worker(work: Callable[[], None]) -> None:
    """Call a function that waits for other threads; on a `Worker`, for which those may wait, have a new thread call it.

    A finalizer runs on any thread.
    """
    if hasattr(_here, "works"):
        threading.Thread(target=work).start()
    else:
        work()


_LOOK_S = 1.0
"""Seconds between polls of a thread that waits for a task: another waiting thread may have been interrupted."""


class Task(Generic[T]):
    """A function submitted to a `Worker`.

    Attributes:
        done: Whether the function has ended.
        error: The exception that it raised.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._work: Callable[[], T] | None = work
        self._value: T | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """Call the function. The worker's thread calls this once."""
        try:
            if self._work is not None:
                self._value = self._work()
        except BaseException as error:
            self.error = error
        self._end()

    def drop(self) -> None:
        """End with an error, without a call: another thread may wait for the end."""
        self.error = RuntimeError("the thread that should have done this was stopped before")
        self._end()

    def _end(self) -> None:
        self._work = None
        self.done = True
        self._running.release()

    def wait(self) -> None:
        """Return when the function has ended. The wait may be interrupted at any instruction, and may be repeated."""
        while not self.done:
            if self._running.acquire(timeout=_LOOK_S):
                self._running.release()

    def result(self) -> T:
        """Wait for the function to end; return its value, or raise its exception."""
        self.wait()
        if self.error is not None:
            raise self.error
        return cast(T, self._value)


class Worker:
    """Threads that run submitted functions in order, with single-threaded torch. They hold only pending tasks."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._tasks = SimpleQueue[Task[Any] | None]()
        self._closed = False
        given: Any = {"target": _work_on, "args": (self._tasks,), "name": name, "daemon": True}
        self._threads = [threading.Thread(**given) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        self.submit(lambda: None).wait()

    def submit(self, work: Callable[[], T]) -> Task[T]:
        """Queue a function to run after all that were submitted before have begun; a closed worker drops it."""
        task = Task(work)
        if self._closed:
            task.drop()
        else:
            self._tasks.put(task)
        return task

    def close(self) -> None:
        """Stop the threads after their current tasks, drop the queued ones, and join them."""
        self._closed = True
        try:
            while True:
                if (task := self._tasks.get_nowait()) is not None:
                    task.drop()
        except Empty:
            for _ in self._threads:
                self._tasks.put(None)
        for thread in self._threads:
            thread.join()


def _work_on(tasks: "SimpleQueue[Task[Any] | None]") -> None:
    compute_alone()
    _here.works = True
    while (task := tasks.get()) is not None:
        task.run()
        del task  # else it would live until the next task arrives


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block: for milliseconds of work, never around a wait for a device."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if not callable(before):
        yield  # only the main thread is interrupted; a handler that is not a function cannot be called later
        return
    came: list[FrameType | None] = []
    try:
        signal.signal(signal.SIGINT, lambda _number, frame: came.append(frame))
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])
