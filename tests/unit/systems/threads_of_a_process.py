"""Threads of a process that are not Python's, those of OpenMP teams among them."""

import threading
from pathlib import Path


def native_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir())) - len(threading.enumerate())
