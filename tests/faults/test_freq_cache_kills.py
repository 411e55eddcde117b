"""The cache when its process is killed while it writes back, or between any two steps of a save."""

import errno
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from functools import partialmethod
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.tiers import file as file_tier
from systems.freq_cache.tiers.row_file import RowFile
from tests.contract.scenes import assert_same, snapshot
from tests.faults.drives import before_each_step
from tests.faults.freq_cache_training import COMMIT_EVERY, TWO_WIDTHS, Plain, built, close, plain_after, started, train
from tests.faults.processes import process, rest


def append_in_two_parts(file: RowFile, whole: Callable[..., Any], position: int, records: Any) -> Any:
    """A write that a kill is likely to cut in two."""
    half = len(records) // 2
    first = whole(file, position, records[:half])
    time.sleep(0.002)
    return np.concatenate([first, whole(file, position + half, records[half:])])


def go_on_until_killed(directory: Path, parent: Connection) -> None:
    """Say what the directory holds, be told which steps to train, tell of every commit, and at the end of all rows."""
    torch.set_num_threads(1)
    RowFile.append = partialmethod(append_in_two_parts, RowFile.append)
    collection = built(directory=directory, look_ahead=2)
    parent.send(numbers(collection))

    def commit(step: int) -> None:
        if (step + 1) % COMMIT_EVERY == 0:
            collection.commit()
            parent.send(step + 1)

    train(collection, parent.recv(), commit)
    parent.send(numbers(collection))


def numbers(collection: CachedEmbeddingBagCollection) -> dict[str, list[Any]]:
    """All rows, without shared memory that would be gone with the process."""
    return {name: value.tolist() for name, value in snapshot(collection).items()}


def tensors(rows: Mapping[str, list[Any]]) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in rows.items()}


@pytest.mark.slow
def test_killed_while_writing_back_opens_at_the_last_commit_and_ends_as_if_never_killed(tmp_path: Path) -> None:
    collection = started(directory=tmp_path)
    collection.commit()
    close(collection)
    moments = random.Random(3)
    plain, done = Plain(), 0
    for _ in range(4):
        with process(go_on_until_killed, tmp_path) as (child, connection):
            done = found_after(plain, done, tensors(connection.recv()))
            connection.send(range(done, 10**4))
            told = [connection.recv()]
            time.sleep(moments.uniform(0, 0.2))
            os.kill(child.pid, signal.SIGKILL)
            told += rest(connection)
        assert child.exitcode == -signal.SIGKILL
        plain.train(range(done, told[-1]))
        done = told[-1]
    with process(go_on_until_killed, tmp_path) as (_, connection):
        done = found_after(plain, done, tensors(connection.recv()))
        connection.send(range(done, done + 10))
        *_, rows = rest(connection)
    plain.train(range(done, done + 10))
    assert_same(tensors(rows), plain.rows())


def found_after(plain: Plain, told: int, rows: Mapping[str, Tensor]) -> int:
    """The step of the last commit: the one told of, or the next, which may be done and not yet told."""
    if all(torch.equal(rows[name], value) for name, value in plain.rows().items()):
        return told
    plain.train(range(told, told + COMMIT_EVERY))
    assert_same(rows, plain.rows())
    return told + COMMIT_EVERY


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


def test_commit_that_fails_for_one_of_two_widths_opens_as_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = started(TWO_WIDTHS, directory=tmp_path)
    train(collection, range(2))
    collection.commit()
    train(collection, range(2, 4))
    original, calls = file_tier.save_map, []

    def full_at_the_second(*arguments: object, **named: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(file_tier, "save_map", full_at_the_second)
        with pytest.raises(OSError, match="No space left"):
            collection.commit()
    close(collection)
    again = built(TWO_WIDTHS, directory=tmp_path)
    assert_same(snapshot(again), plain_after(2, TWO_WIDTHS))
    close(again)
