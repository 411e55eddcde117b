"""Checkpoints and committed directories that are not what they should be."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache.tiers.row_map import DamagedTier
from tests.contract.scenes import assert_same, snapshot, table
from tests.faults.freq_cache_training import TABLES, TWO_WIDTHS, built, close, started, train


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    collection = started(policy="lfu")
    train(collection, range(3))
    collection.save(tmp_path / "saved")
    return tmp_path / "saved"


def file_of(saved: Path, entry: str) -> Path:
    shops = json.loads((saved / "manifest.json").read_text())["tables"]["shops"]
    return saved / (shops["rows_file"] if entry == "rows" else shops["policy"]["file"])


def flip(path: Path, place: int = 50) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x80
    path.write_bytes(data)


def assert_refused(saved: Path, error: type[Exception], file: Path, remedy: str, **choices: Any) -> None:
    """With the file and the remedy in the message, and without a change to any row."""
    collection = started(policy="lfu", **choices)
    before = snapshot(collection)
    with pytest.raises(error, match=remedy) as caught:
        collection.load(saved)
    assert str(file) in str(caught.value)
    assert_same(snapshot(collection), before)


@pytest.mark.parametrize("entry", ["rows", "policy"])
@pytest.mark.parametrize("damage", [Path.unlink, flip, lambda path: os.truncate(path, 60)])
def test_damaged_checkpoint_is_refused(saved: Path, entry: str, damage: Callable[[Path], object]) -> None:
    file = file_of(saved, entry)
    damage(file)
    assert_refused(saved, ValueError, file, "take an older checkpoint")


@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, 60), lambda path: path.write_text("[]")])
def test_damaged_manifest_is_refused(saved: Path, damage: Callable[[Path], object]) -> None:
    damage(saved / "manifest.json")
    assert_refused(saved, ValueError, saved / "manifest.json", "take an older checkpoint")


def test_directory_without_checkpoint_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", FileNotFoundError, tmp_path / "none", "no manifest.json in it")


def test_checkpoint_of_a_newer_version_is_refused(saved: Path) -> None:
    manifest = saved / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 3'))
    assert_refused(saved, ValueError, manifest, "of version 3, this code reads 2")


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


def test_directory_of_which_one_cache_was_put_back_is_refused(tmp_path: Path) -> None:
    collection = started(TWO_WIDTHS, directory=tmp_path)
    collection.commit()
    older = (tmp_path / "cache_1" / "map").read_bytes()
    train(collection, range(1))
    collection.commit()
    close(collection)
    (tmp_path / "cache_1" / "map").write_bytes(older)
    with pytest.raises(DamagedTier, match="committed 2 times, cache_1 in it holds commit 1: restore"):
        built(TWO_WIDTHS, directory=tmp_path)


def test_number_of_commits_that_is_damaged_is_refused(tmp_path: Path) -> None:
    collection = started(directory=tmp_path)
    collection.commit()
    close(collection)
    (tmp_path / "commits").write_text("many")
    with pytest.raises(DamagedTier, match="commits is damaged, its checksum"):
        built(directory=tmp_path)
