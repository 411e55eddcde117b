"""Directories of rows in which a byte, a file or what is asked for is another: right rows, or an error.

A commit is ended between any two of its steps, so that every state in which a process can leave a directory is damaged.
"""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.tiers import commits, row_file
from systems.freq_cache.tiers.commits import Damaged
from systems.freq_cache.tiers.slow_tier import RowLayout
from tests.contract.scenes import assert_same, snapshot, table
from tests.faults.drives import before_each_step
from tests.faults.freq_cache_training import ADAGRAD, TABLES, TWO_WIDTHS, built, plain_after, started, train
from tests.faults.kept_tiers import KeptTier

NARROW, WIDE = RowLayout(4, torch.float32, {"sum": 1}), RowLayout(128, torch.float32, {})


@pytest.fixture(autouse=True, scope="module")
def _no_drive_is_waited_for() -> Iterator[None]:
    """No power is cut here: what was written is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.mark.parametrize("direct", [True, False], ids=["as the file system allows", "page cache"])
@pytest.mark.parametrize("layout", [NARROW, WIDE], ids=["20 bytes", "512 bytes"])
def test_every_damaged_byte_of_a_record_is_told_with_its_row_and_no_other_row_suffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: RowLayout, direct: bool
) -> None:
    if not direct:
        monkeypatch.setattr(row_file, "_NUMBERS", {})  # a machine without asynchronous access
    chance, rows, path = random.Random(layout.dim), 12, tmp_path / "cache_0" / "rows.bin"
    tier = KeptTier(tmp_path, rows=rows, layout=layout)
    for _ in range(2):
        tier.write(torch.randperm(rows), torch.randn(rows, layout.width))
        tier.commit({})
    right = tier.held()
    tier.close()
    sound = path.read_bytes()
    stride = layout.record_bytes
    for place in chance.sample(range(len(sound) // stride * stride), 25):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ chance.randrange(1, 256)]) + sound[place + 1 :])
        tier = KeptTier(tmp_path, rows=rows, layout=layout)
        told = []
        for row in range(rows):
            try:
                assert torch.equal(tier.held(torch.tensor([row])), right[row : row + 1])
            except Damaged as error:
                assert str(error).startswith(f"{path}: the record of row {row}, at byte {place // stride * stride}, is")
                told.append(row)
        named = {int(code) - 1 for code in tier._codes}
        assert len(told) == (place // stride in named)
        tier.close()


def test_older_record_and_that_of_another_row_and_a_hole_are_no_record_of_a_row(tmp_path: Path) -> None:
    tier = KeptTier(tmp_path, rows=4, layout=NARROW)
    path, size, right = tmp_path / "cache_0" / "rows.bin", NARROW.record_bytes, torch.rand(4, NARROW.width)
    for records in (right + 1, right + 2, right + 3, right):
        tier.write(torch.arange(4), records)
        tier.commit({})
        if records is not right:
            before = path.read_bytes()
    tier.close()
    now = bytearray(path.read_bytes())
    own = [now.index(record.numpy().tobytes()) for record in right]
    older = before[own[2] : own[2] + size]
    assert older == (right + 2)[2].numpy().tobytes()  # the last were written over the second ones
    for place, other in zip(own, (now[own[1] : own[1] + size], bytes(size), older), strict=False):
        now[place : place + size] = other
    path.write_bytes(now)
    again = KeptTier(tmp_path, rows=4, layout=NARROW)
    assert torch.equal(again.held(torch.tensor([3])), right[3:])
    for row in range(3):
        with pytest.raises(Damaged, match=f"the record of row {row}, "):
            again.held(torch.tensor([row, 3]))
    again.close()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The directories that a process leaves which ends before the first step of its second commit, or any later one."""
    folder = tmp_path_factory.mktemp("states")
    running = folder / "running"
    collection = started(TWO_WIDTHS, directory=running)
    train(collection, range(2))
    collection.commit()
    train(collection, range(2, 4))
    collection.flush()
    left: list[Path] = []
    with before_each_step(lambda: left.append(shutil.copytree(running, folder / str(len(left))))):
        collection.commit()
    collection.close()
    assert len(left) > 8
    return [*left, running]


def steps_in(found: dict[str, Tensor]) -> int:
    """The steps that the rows of one commit or the other have had."""
    steps = 4 if all(torch.equal(found[name], rows) for name, rows in plain_after(4, TWO_WIDTHS).items()) else 2
    assert_same(found, plain_after(steps, TWO_WIDTHS))
    return steps


def test_commit_that_ends_between_any_two_steps_opens_as_one_commit_or_the_other_and_goes_on(
    states: list[Path], tmp_path: Path
) -> None:
    for number, state in enumerate(states):
        directory = shutil.copytree(state, tmp_path / str(number))
        collection = built(TWO_WIDTHS, directory=directory)
        train(collection, range(steps_in(snapshot(collection)), 6))
        collection.commit()
        collection.close()
        again = built(TWO_WIDTHS, directory=directory)
        assert_same(snapshot(again), plain_after(6, TWO_WIDTHS))
        again.close()


def opens_right_or_tells(directory: Path) -> bool:
    """Whether a directory opens; if it does, its rows are those of one commit or the other."""
    try:
        collection = built(TWO_WIDTHS, directory=directory)
    except ValueError as error:
        assert str(directory) in str(error)
        return False
    try:
        found = snapshot(collection)
    except Damaged as error:
        assert "rows.bin: the record of row" in str(error)
        return False
    finally:
        collection.close()
    steps_in(found)
    return True


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize("trials", [30, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_any_byte_of_any_file_of_a_directory_that_changes_leaves_right_rows_or_an_error(
    states: list[Path], tmp_path: Path, trials: int
) -> None:
    seed = random.SystemRandom().randrange(1 << 16)
    chance, told = random.Random(seed), 0
    for number in range(trials):
        directory = tmp_path / str(number)
        shutil.copytree(chance.choice(states), directory)
        file = chance.choice(files_of(directory))
        data = bytearray(file.read_bytes())
        place, bits = chance.randrange(len(data)), chance.randrange(1, 256)
        data[place] ^= bits
        file.write_bytes(data)
        try:
            told += not opens_right_or_tells(directory)
        except BaseException as error:
            error.add_note(f"seed {seed}: byte {place} of {file} changed by {bits}")
            raise
        shutil.rmtree(directory)
    assert told > trials / 4


def test_any_file_that_is_gone_or_cut_leaves_right_rows_or_an_error(states: list[Path], tmp_path: Path) -> None:
    told = 0
    for number, state in enumerate(states[::3]):
        for file in files_of(state):
            for cut in (False, True):
                directory = tmp_path / f"{number} {cut} {'-'.join(file.relative_to(state).parts)}"
                shutil.copytree(state, directory)
                damaged = directory / file.relative_to(state)
                if cut:
                    os.truncate(damaged, file.stat().st_size // 2)
                else:
                    damaged.unlink()
                told += not opens_right_or_tells(directory)
    assert told > 10


USERS, SHOPS = TWO_WIDTHS
ONE_WIDTH = (table("users", 60, 8), table("shops", 40, 8))


@pytest.mark.parametrize(
    ("tables", "asked", "choices"),
    [
        (TWO_WIDTHS, (USERS,), {}),
        (TWO_WIDTHS, (USERS, SHOPS, table("third", 40, 4)), {}),
        (TWO_WIDTHS, (SHOPS, USERS), {}),
        (TWO_WIDTHS, TWO_WIDTHS, {"seed": 3}),
        (ONE_WIDTH, ONE_WIDTH[::-1], {}),
        (ONE_WIDTH, (table("shops", 60, 8), table("users", 40, 8)), {}),
        (ONE_WIDTH, ONE_WIDTH, {"cache_rows": {"users": 20}}),
        (ONE_WIDTH, ONE_WIDTH, {"slow_rows": "fp16"}),
        (ONE_WIDTH, ONE_WIDTH, {"optimizer": ADAGRAD}),
        (ONE_WIDTH, (table("users", 60, 12), table("shops", 40, 12)), {}),
    ],
)
def test_directory_asked_for_other_rows_is_refused_and_stays_as_it_is(
    tmp_path: Path, tables: tuple[Any, ...], asked: tuple[Any, ...], choices: dict[str, Any]
) -> None:
    collection = started(tables, directory=tmp_path)
    collection.commit()
    train(collection, range(2))
    collection.flush()
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):  # as the commit counts
        patch.setattr(commits, "sync_directory", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        collection.commit()
    collection.close()
    before = {path: path.read_bytes() for path in files_of(tmp_path)}
    with pytest.raises(ValueError, match="other tables, in another order, of another layout or of another seed"):
        built(asked, directory=tmp_path, **choices)
    assert {path: path.read_bytes() for path in files_of(tmp_path)} == before
    again = built(tables, directory=tmp_path)
    assert_same(snapshot(again), plain_after(2, tables))
    again.close()


def test_directory_without_its_number_of_commits_is_refused_and_opens_once_that_is_back(tmp_path: Path) -> None:
    collection = started(ONE_WIDTH, directory=tmp_path)
    train(collection, range(2))
    collection.commit()
    collection.close()
    kept = (tmp_path / "commits").read_bytes()
    (tmp_path / "commits").unlink()
    for tables in (ONE_WIDTH, ONE_WIDTH[::-1], TABLES):
        with pytest.raises(Damaged, match=r"commits is missing, and .*map\.1 was committed with it: restore it"):
            built(tables, directory=tmp_path)
    (tmp_path / "commits").write_bytes(kept)
    again = built(ONE_WIDTH, directory=tmp_path)
    assert_same(snapshot(again), plain_after(2, ONE_WIDTH))
    again.close()


def test_directory_that_was_never_committed_takes_any_tables(tmp_path: Path) -> None:
    collection = started(TWO_WIDTHS, directory=tmp_path)
    train(collection, range(2))
    collection.flush()
    collection.close()
    for tables in (ONE_WIDTH, TWO_WIDTHS):
        again = started(tables, directory=tmp_path)
        assert_same(snapshot(again), plain_after(0, tables))
        again.close()


def test_damaged_row_is_named_by_its_table_where_a_batch_wants_it(tmp_path: Path) -> None:
    collection = started(ONE_WIDTH, directory=tmp_path)
    collection.commit()
    collection.close()
    path = tmp_path / "cache_0" / "rows.bin"
    data = bytearray(path.read_bytes())
    place = (60 + 7) * 8 * 4  # the rows were written in order
    data[place] ^= 1
    path.write_bytes(data)
    again = built(ONE_WIDTH, directory=tmp_path, look_ahead=2)
    message = f"rows.bin: the record of row 7 of table shops, at byte {place}, is not what was written"
    with pytest.raises(Damaged, match=message):
        again.read_rows("shops", torch.tensor([6, 7]))
    with pytest.raises(Damaged, match=message):
        train(again, range(100))
    again.close()


def no_memory(*_: object, **__: object) -> Any:
    raise MemoryError("no room for counts or slots")


@pytest.mark.parametrize("failing", ["policy", "slots"])
def test_construction_that_fails_lets_go_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    caught: list[BaseException] = []
    with monkeypatch.context() as patch:
        if failing == "slots":
            patch.setattr(SlotTable, "__init__", no_memory)
        try:
            built(TWO_WIDTHS, directory=tmp_path, policy=no_memory if failing == "policy" else "lru")
        except MemoryError as error:
            caught.append(error)  # its frames keep all that was made alive
    assert caught
    built(TWO_WIDTHS, directory=tmp_path).close()


@pytest.mark.parametrize(("direct", "label"), [(True, "file"), (False, "file (page cache)")])
def test_placement_says_whether_the_file_is_read_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool, label: str
) -> None:
    if not direct:
        monkeypatch.setattr(row_file, "_NUMBERS", {})  # a machine without asynchronous access
    collection = built(directory=tmp_path)
    assert collection.caches[0].tier.direct == direct  # this test's file system has direct access
    assert collection.placement.label == f"{label} + RAM slots"
    collection.close()
