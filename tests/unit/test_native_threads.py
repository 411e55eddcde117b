"""In a process of its own, no thread but the one that trains opens an OpenMP team.

What is counted are threads that are not Python's: a team of the training thread is there in every case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def counted(script: str, *words: str) -> list[tuple[str | list[str], int, int]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "unit" / script, *words], env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def test_look_ahead_adds_no_thread_but_the_named_ones_with_any_tier(tmp_path: Path) -> None:
    by_tier: dict[str, dict[int, int]] = defaultdict(dict)
    for tier, look_ahead, threads in counted("systems/freq_cache/native_threads_of_training.py", str(tmp_path)):
        by_tier[" ".join(tier)][look_ahead] = threads
    assert len(by_tier) == 5
    for tier, threads in by_tier.items():
        assert list(threads) == [0, 2, 4]
        assert max(threads.values()) == threads[0], tier


@pytest.mark.slow
def test_producers_and_look_ahead_of_a_cell_add_no_thread_but_the_named_ones() -> None:
    plain, *others = counted("suite/run/cell/native_threads_of_cells.py")
    assert [threads for *_, threads in others] == [plain[-1]] * 2
