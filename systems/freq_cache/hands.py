"""Work shared with a second thread: compiled loops that release the GIL, on as many threads as torch computes with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


def in_parts(work: Callable[[int, int], None]) -> None:
    """Call `work(part, parts)` for every part, one of them here; returns when all are done."""
    parts = torch.get_num_threads()
    others = [_executor(parts - 1).submit(work, part, parts) for part in range(1, parts)] if parts > 1 else []
    try:
        work(0, parts)
    finally:
        for other in others:
            other.exception()  # waits for it
    for other in others:
        other.result()


@cache
def _executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="cache-moving")
