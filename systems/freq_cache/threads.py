"""Threads that share the work on one large batch.

Compiled loops release the GIL, so several threads run them on parts of the rows to copy or to fill. There are as many
threads as torch uses for training; the calling thread is one of them, and waits for the others.
"""

import os
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cache

from systems.threads import cores, pool_of


def parts_of(items: int, *, least: int) -> int:
    """Number of threads for `items` items, with at least `least` items per thread."""
    return max(1, min(items // least, cores()))


def in_parts(work: Callable[[int], None], parts: int) -> None:
    """Call `work(part)` for every part, 0 on this thread and the others on their own. Returns when all are done.

    Raises:
        BaseException: the exception of the first part that failed.
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
def _executor() -> Executor:
    return pool_of(os.cpu_count() or 1, "cache-part")
