"""Checkpoints and committed directories that are not what they should be, or whose process is killed meanwhile."""

import errno
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.tiers import commits
from systems.freq_cache.tiers.commits import Damaged
from tests.contract.scenes import assert_same, snapshot, table
from tests.faults.drives import before_each_step
from tests.faults.freq_cache_training import TABLES, TWO_WIDTHS, batch, built, plain_after, started, train


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    collection = started(policy="lfu")
    train(collection, range(3))
    collection.save(tmp_path / "saved")
    return tmp_path / "saved"


def entry_of(saved: Path) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((saved / "manifest.json").read_text())["tables"]["shops"]
    return entry


def assert_refused(saved: Path, error: type[Exception], file: Path, remedy: str, **choices: Any) -> None:
    """With the file and the remedy in the message, and without a change to any row."""
    collection = started(policy="lfu", **choices)
    before = snapshot(collection)
    with pytest.raises(error, match=remedy) as caught:
        collection.load(saved)
    assert str(file) in str(caught.value)
    assert_same(snapshot(collection), before)


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (Path.unlink, "is missing, or no file: take an older checkpoint"),
        (lambda path: os.truncate(path, 60), "take an older checkpoint"),
        # what is learnt is cut, with a checksum that somebody else could write; a pipe is not waited for
        (lambda path: os.truncate(path, path.stat().st_size - 2), "has 3,398 bytes, not 3,400"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is missing, or no file"),
    ],
)
def test_damaged_checkpoint_is_refused(saved: Path, damage: Callable[[Path], object], remedy: str) -> None:
    file = saved / entry_of(saved)["file"]
    damage(file)
    if file.is_file():
        signed(saved, crc32=zlib.crc32(file.read_bytes()))
    assert_refused(saved, ValueError, file, remedy)


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 60), lambda path: path.write_text("[]")])
def test_damaged_manifest_is_refused(saved: Path, damage: Callable[[Path], object]) -> None:
    damage(saved / "manifest.json")
    assert_refused(saved, ValueError, saved / "manifest.json", "take an older checkpoint")


def test_directory_without_checkpoint_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", FileNotFoundError, tmp_path / "none", "no manifest.json in it")


def test_checkpoint_of_a_newer_version_is_refused(saved: Path) -> None:
    manifest = saved / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 3', '"version": 4'))
    assert_refused(saved, ValueError, manifest, "of version 4, this code reads 3")


@pytest.mark.parametrize(
    ("tables", "choices", "difference"),
    [
        ((TABLES[0], table("clients", 100, 8)), {}, "clients, shops"),
        (TABLES[:1], {}, "shops"),
        ((TABLES[0], table("shops", 101, 8)), {}, "'rows': 100.*'rows': 101"),
        ((TABLES[0], table("shops", 100, 16)), {}, "'dim': 8.*'dim': 16"),
        ((TABLES[0], table("shops", 100, 8, half=True)), {}, "float32.*float16"),
        (
            TABLES,
            {"optimizer": SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.5)},
            r"'state': {}.*'state': {'sum': 1}",
        ),
    ],
)
def test_checkpoint_of_other_tables_or_optimizer_is_refused(
    saved: Path, tables: tuple[Any, ...], choices: dict[str, Any], difference: str
) -> None:
    assert_refused(saved, ValueError, saved / "manifest.json", difference, tables=tables, **choices)


def test_any_byte_of_a_checkpoint_that_changes_is_told_or_of_no_weight(saved: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    collection = built(policy="lfu")
    collection.load(saved)
    right, hyper = snapshot(collection), collection.fused_optimizer.hyper
    for file in sorted(saved.iterdir()):
        sound = file.read_bytes()
        for place in chance.sample(range(len(sound)), 40):
            file.write_bytes(sound[:place] + bytes([sound[place] ^ chance.randrange(1, 256)]) + sound[place + 1 :])
            try:
                collection.load(saved)
            except ValueError as error:
                assert str(saved) in str(error)
            assert_same(snapshot(collection), right)
            assert collection.fused_optimizer.hyper == hyper
        file.write_bytes(sound)


def signed(saved: Path, **entry: Any) -> None:
    """Change the manifest's entry of a table, and its checksum with it, as somebody else could."""
    path = saved / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["crc32"]
    manifest["tables"]["shops"] |= entry
    path.write_text(json.dumps({**manifest, "crc32": commits._checksum(manifest)}))


@pytest.mark.parametrize("file", ["../elsewhere", "/etc/hostname", "table_0.abc/../../elsewhere", "", "table_1"])
def test_manifest_that_names_a_file_elsewhere_is_refused(saved: Path, file: str) -> None:
    (saved / entry_of(saved)["file"]).rename(saved.parent / "elsewhere")
    signed(saved, file=file)
    assert_refused(saved, ValueError, saved / "manifest.json", "which no save has written: take another checkpoint")


@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "the drive is gone"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["tier", "slots", "checkpoint"])
def test_load_that_ends_half_way_is_told_until_rows_are_loaded_whole(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException, directory: bool
) -> None:
    choices: dict[str, Any] = {"directory": tmp_path / "rows"} if directory else {}
    collection = started(policy="lfu", **choices)
    if directory:
        collection.commit()
    train(collection, range(10, 13))
    owner, name = {
        "tier": (type(collection.caches[0].tier), "write"),
        "slots": (Cache, "_fetch"),
        "checkpoint": (np, "fromfile"),
    }[place]
    original, left = getattr(owner, name), iter(range(1))

    def failing_at_the_second_table(*arguments: object) -> object:
        if next(left, None) is None:
            raise error
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing_at_the_second_table)
        with pytest.raises(type(error)):
            collection.load(saved)
    for use in (
        lambda: collection(batch(1)),
        lambda: collection.eval()(batch(1)),
        collection.flush,
        collection.state_dict,
        lambda: collection.read_rows("users", torch.arange(3)),
        lambda: collection.save(tmp_path / "other"),
        *([collection.commit] if directory else []),
    ):
        with torch.no_grad(), pytest.raises(RuntimeError, match="some are the old ones and some the new: load them"):
            use()
    assert not (tmp_path / "other").exists()
    collection.train()
    collection.load(saved)
    assert_same(snapshot(collection), plain_after(3))
    train(collection, range(3, 6))
    assert_same(snapshot(collection), plain_after(6))
    collection.close()


def test_rows_that_were_loaded_in_part_are_told_until_the_same_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    collection = started()
    train(collection, range(3))
    rows = collection.read_rows("users", torch.arange(100))
    with monkeypatch.context() as patch:
        patch.setattr(Cache, "_fetch", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "gone")))
        with pytest.raises(OSError, match="gone"):
            collection.load_rows("users", 0, rows)
    collection.load_rows("users", 50, rows)
    with pytest.raises(RuntimeError, match="load them again"):
        collection.flush()
    collection.load_rows("users", 0, rows)
    collection.flush()


def test_directory_of_which_one_cache_was_put_back_is_refused(tmp_path: Path) -> None:
    collection = started(TWO_WIDTHS, directory=tmp_path)
    collection.commit()
    older = (tmp_path / "cache_1" / "map.1").read_bytes()
    train(collection, range(1))
    collection.commit()
    collection.close()
    (tmp_path / "cache_1" / "map.2").write_bytes(older)
    with pytest.raises(Damaged, match=r"map\.2 is missing or damaged, its checksum does not match: restore"):
        built(TWO_WIDTHS, directory=tmp_path)


@pytest.mark.parametrize("commits", [False, True])
def test_names_of_all_directories_that_are_made_are_brought_to_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
    rows = tmp_path / "a" / "b" / "c"
    collection = started(directory=rows) if commits else started()
    if commits:
        collection.commit()
    else:
        collection.save(rows)
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)
    collection.close()


def test_save_that_ends_between_any_two_steps_leaves_one_checkpoint_or_the_other_and_the_next_clears_up(
    tmp_path: Path,
) -> None:
    """The steps: two tables, the manifest, which takes its place, and the directory."""
    collection, saved = started(policy="lfu"), tmp_path / "saved"
    train(collection, range(4))
    collection.save(saved)
    train(collection, range(4, 5))
    left: list[Path] = []
    with before_each_step(lambda: left.append(shutil.copytree(saved, tmp_path / str(len(left))))):
        collection.save(saved)
    for state, steps in zip([*left, saved], [4, 4, 4, 4, 5, 5], strict=True):
        again = built()
        again.load(state)
        assert_same(snapshot(again), plain_after(steps))
        again.save(state)
        tables = json.loads((state / "manifest.json").read_text())["tables"].values()
        assert {path.name for path in state.iterdir()} == {"manifest.json", *(entry["file"] for entry in tables)}
