"""Programs that make records: they import neighbours by plain names, and are tested in `make test-all`, run whole."""

import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parents[3] / "results"

sys.path += [
    str(PROGRAMS / topic)
    for topic in ("cache", "cuda", "device_memory", "disk", "microbench", "simulate", "streams", "tracks", "turns")
]


@pytest.hookimpl(tryfirst=True)  # before the slow ones are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
