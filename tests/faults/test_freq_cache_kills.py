"""The cache when its process is killed between any two steps of a save."""

import json
import os
import shutil
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from tests.contract.scenes import assert_same, snapshot
from tests.faults.drives import before_each_step
from tests.faults.freq_cache_training import built, plain_after, started, train
from tests.faults.processes import process

STEPS_OF_SAVE = ["fsync"] * 5 + ["replace", "fsync"]
"""Rows and policy of two tables, the manifest, which takes its place, and the directory."""


def save_until_killed(directory: Path, moment: int, parent: Connection) -> None:
    """Go on from a checkpoint, and end before one of the steps of the next one."""
    torch.set_num_threads(1)
    collection = built(policy="lfu")
    collection.load(directory)
    train(collection, range(4, 5))
    steps = iter(range(len(STEPS_OF_SAVE)))

    def kill_at_the_moment() -> None:
        if next(steps) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    with before_each_step(kill_at_the_moment):
        collection.save(directory)


@pytest.mark.slow
def test_killed_during_save_loads_as_the_previous_checkpoint_until_the_new_one_is_whole(tmp_path: Path) -> None:
    collection = started(policy="lfu")
    train(collection, range(4))
    collection.save(tmp_path / "first")
    for moment in range(len(STEPS_OF_SAVE)):
        directory = tmp_path / str(moment)
        shutil.copytree(tmp_path / "first", directory)
        with process(save_until_killed, directory, moment) as (child, _):
            pass
        assert child.exitcode == -signal.SIGKILL
        whole = moment > STEPS_OF_SAVE.index("replace")
        again = built()
        again.load(directory)
        assert_same(snapshot(again), plain_after(5 if whole else 4))


@pytest.mark.slow
def test_next_save_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    collection = started()
    collection.save(tmp_path)
    with process(save_until_killed, tmp_path, STEPS_OF_SAVE.index("replace")):
        pass
    collection.save(tmp_path)
    tables = json.loads((tmp_path / "manifest.json").read_text())["tables"].values()
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", *(entry["rows_file"] for entry in tables)}
