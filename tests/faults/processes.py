"""Processes for tests to kill, forked from one that has imported all they need: one starts in some milliseconds."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.warm", "tests.faults.generations"])


@contextmanager
def process(task: Callable[..., None], *arguments: object) -> Iterator[tuple[Any, Connection]]:
    """A process of its own, with the end of a pipe to it; it must have ended by the end of the block."""
    ours, theirs = PROCESSES.Pipe()
    child = PROCESSES.Process(target=task, args=(*arguments, theirs))
    child.start()
    theirs.close()
    try:
        yield child, ours
        child.join(60)
    finally:
        child.kill()


def rest(connection: Connection) -> list[Any]:
    """All that is still to come from a process until it ends."""
    found = []
    with suppress(EOFError):
        while True:
            found.append(connection.recv())
    return found
