"""Reading ahead: a thread makes the next item while the caller works on the last one.

It helps where making an item releases the GIL: reading, decompressing, parsing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """The same items in the same order; an error is raised where its item would have come."""
    ready: queue.Queue[_Item | BaseException | None] = queue.Queue(maxsize=1)
    stop = threading.Event()

    def put(item: _Item | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for made in items:
                if not put(made):
                    return
        except BaseException as error:  # raised where the item is wanted
            put(error)
        else:
            put(None)

    def get() -> _Item | BaseException | None:
        # Not an endless wait: polars' handler has the system take up such a wait again after a Ctrl-C.
        while True:
            try:
                return ready.get(timeout=0.1)
            except queue.Empty:
                continue

    # A daemon: a reader that waits for a pipe must not keep an interrupted program alive.
    threading.Thread(target=read, daemon=True).start()
    try:
        while (item := get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
