"""Work shared with other threads: compiled loops that release the GIL, on as many threads as torch computes with."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


def parts_of(items: int, *, least: int) -> int:
    """On how many threads to work on so many items, of which `least` are worth a thread."""
    return max(1, min(items // least, torch.get_num_threads()))


def in_parts(work: Callable[[int, int], None], parts: int) -> None:
    """Call `work(part, parts)` for every part, one of them here; returns when all are done."""
    if parts == 1:
        work(0, 1)
        return
    others = [_executor().submit(work, part, parts) for part in range(1, parts)]
    try:
        work(0, parts)
    finally:
        for other in others:
            other.exception()  # waits for it
    for other in others:
        other.result()


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="cache-part")
