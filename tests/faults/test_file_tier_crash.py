"""The tier on disk when a write is interrupted before any line of it."""

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


class Killed(BaseException):
    """Stands for the end of the process."""


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
