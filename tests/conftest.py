"""Shared by all tests: quiet OpenMP barriers, the real samples, and a device to run on."""

import os
import signal
import tempfile
from pathlib import Path

# Before torch loads libgomp: its threads spin at barriers by default and crawl when tests share the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import pytest
import torch
from hypothesis import settings

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Runs on one device exclude each other; each process of a test run has devices of its own, so to speak.
_LOCKS = tempfile.TemporaryDirectory(prefix="locks-")
os.environ["EMBEDDING_BENCH_LOCKS"] = _LOCKS.name

# A busy machine is no failure. In CI the same code gets the same examples; every other run searches anew.
settings.register_profile("untimed", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("untimed")


CORES = len(os.sched_getaffinity(0))
_THREADS = max(1, min(CORES - 1, torch.get_num_threads()))  # no more than OMP_NUM_THREADS asks for, as benchmarks do


@pytest.fixture(autouse=True)
def _a_free_core() -> None:
    """On a CPU the cache has threads of its own only where a core is left to them."""
    torch.set_num_threads(_THREADS)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """CUDA where there is a device: the same tests then cover that path."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def samples() -> Path:
    """Directory of the real samples."""
    fallback = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    folder = Path(os.environ.get("EMBEDDING_OFFLOAD_DATA", fallback))
    if not folder.is_dir():
        pytest.skip(f"the real samples are not in {folder}: set EMBEDDING_OFFLOAD_DATA")
    return folder
