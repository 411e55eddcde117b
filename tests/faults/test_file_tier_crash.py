"""The tier on disk when its commit is cut short between two steps, or its drive is full."""

import errno
import shutil
import sys
from itertools import count
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from systems.freq_cache.tiers import commits
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.layout import RowLayout
from tests.faults.drives import file_size_limit
from tests.faults.kept_tiers import KeptTier

pytestmark = pytest.mark.slow

ROWS = 20_000
BATCH = 3_000
LAYOUT = RowLayout(12, torch.float32, {"sum": 1})


def batch(step: int) -> tuple[Tensor, Tensor]:
    """What is written in a step."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randperm(ROWS, generator=generator)[:BATCH]
    return rows, torch.randn(BATCH, LAYOUT.width, generator=generator)


def after(step: int) -> Tensor:
    """All records after a step."""
    records = torch.zeros(ROWS, LAYOUT.width)
    for done in range(1, step + 1):
        rows, written = batch(done)
        records[rows] = written
    return records


def opened(directory: Path) -> KeptTier:
    return KeptTier(directory, rows=ROWS, layout=LAYOUT)


def held(tier: FileTier) -> Tensor:
    out = LAYOUT.empty(ROWS)
    tier.read(torch.arange(ROWS), out)
    return out


def committed_step(tier: KeptTier) -> int:
    step = tier.committed_extra.get("step", 0)
    assert isinstance(step, int)
    return step


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory after 39 steps, so many that free positions are in use; every third was committed."""
    directory = tmp_path_factory.mktemp("gone_on")
    tier = opened(directory)
    for step in range(1, 40):
        tier.write(*batch(step))
        if step % 3 == 0:
            tier.commit({"step": step})
    tier.close()
    return directory


def write_interrupted(tier: FileTier, step: int, line: int) -> bool:
    """Write what a step does, ended before a line of the tier, by number. Returns whether there are so many."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(str(Path(commits.__file__).parent)):
            return None
        # as a `with` ends, its line comes again: an interrupt there would keep the lock, and signals do not come there
        if event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith("with "):
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Killed
        return trace

    before = sys.gettrace()  # coverage's, which goes on afterwards
    sys.settrace(trace)
    try:
        tier.write(*batch(step))
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


def test_interrupt_before_any_line_of_a_write_leaves_all_rows_old_or_all_new(tmp_path: Path) -> None:
    old, new = after(1), after(2)
    outcomes = []
    tier = opened(tmp_path / "before")
    for _ in range(4):
        tier.write(*batch(1))
        tier.commit({"step": 1})
    tier.close()
    for line in count():
        shutil.copytree(tmp_path / "before", tmp_path / str(line))
        tier = opened(tmp_path / str(line))
        assert tier._positions.offer(BATCH).size  # free positions will be in use
        interrupted = write_interrupted(tier, 2, line)
        found = held(tier)
        assert torch.equal(found, old) or torch.equal(found, new), f"line {line}"
        outcomes.append(torch.equal(found, new))
        tier.commit({"step": 2})
        tier.close()
        again = opened(tmp_path / str(line))
        assert torch.equal(held(again), found), f"line {line}, opened again"
        again.write(*batch(2))
        assert torch.equal(held(again), new)
        again.close()
        if not interrupted:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes[0] < outcomes[-2]  # some lines come after the rows have moved


@pytest.mark.parametrize("counts", [False, True])
def test_map_that_was_saved_counts_if_the_directory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    tier = opened(tmp_path)
    tier.write(*batch(1))
    tier.commit({"step": 1})
    tier.write(*batch(2))
    if counts:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no directory today"):
            patch.setattr(commits, "sync_directory", _fail)
            tier.commit({"step": 2})
    else:
        tier.save_map(2)
    tier.close()
    again = opened(tmp_path)
    assert committed_step(again) == (2 if counts else 1)
    assert torch.equal(held(again), after(2 if counts else 1))
    again.close()


def test_map_of_a_commit_that_was_given_up_is_not_used_by_later_ones(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.write(*batch(1))
    tier.save_map(1)
    for step in (2, 3):
        tier.write(*batch(step))
    tier.commit({"step": 3})
    tier.write(*batch(4))
    tier.close()
    again = opened(tmp_path)
    assert committed_step(again) == 3
    assert torch.equal(held(again), after(3))
    again.close()


def test_commit_that_may_not_last_is_made_to_last_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(tmp_path)
    tier.write(*batch(1))
    with monkeypatch.context() as patch:
        patch.setattr(commits, "sync_directory", _fail)
        for attempt in (lambda: tier.commit({"step": 1}), lambda: tier.write(*batch(2))):
            with pytest.raises(OSError, match="no directory today"):
                attempt()
    tier.write(*batch(2))
    assert committed_step(tier) == 1
    tier.close()
    again = opened(tmp_path)
    assert torch.equal(held(again), after(1))
    again.close()


def _fail(_: Path) -> None:
    raise OSError("no directory today")


def test_free_positions_that_cannot_be_written_fail_the_write_and_keep_all_rows(gone_on: Path, tmp_path: Path) -> None:
    shutil.copytree(gone_on, tmp_path, dirs_exist_ok=True)
    tier = opened(tmp_path)
    failures = 0
    for step in range(40, 48):
        size_bytes = (tmp_path / "cache_0" / "rows.bin").stat().st_size
        with file_size_limit(size_bytes // 2 // 4096 * 4096):
            try:
                tier.write(*batch(step))
            except OSError as error:
                assert error.errno == errno.EFBIG
                assert torch.equal(held(tier), after(step - 1))
                failures += 1
        tier.write(*batch(step))
        assert torch.equal(held(tier), after(step))
    assert failures
    tier.close()
