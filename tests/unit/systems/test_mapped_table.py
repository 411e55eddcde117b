"""Rows in mapped files: no memory of their own, on the drive as they are read, a full drive said before a store."""

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from systems.contract import MemoryUse, OptimizerKind, Rows, Tier, Verdict
from systems.mapped_table import MappedTable
from tests.contract.scenes import UNIFORM, table
from tests.unit.systems.specs import spec


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_rows_and_state_lie_in_the_files_one_table_after_the_other(directory: Path) -> None:
    a, b = table("a", 3, 4), table("b", 2, 4)
    system = MappedTable(spec(a, b, device="cpu", kind=OptimizerKind.ROWWISE_ADAGRAD))
    system.load_rows("b", 1, Rows(torch.arange(4.0)[None], {"sum": torch.tensor([5.0])}))
    (rows,), (state,) = directory.rglob("weights"), directory.rglob("momentum1")
    assert np.fromfile(rows, np.float32).tolist() == [0.0] * 16 + list(range(4))
    assert np.fromfile(state, np.float32).tolist() == [0, 0, 0, 0, 5]
    assert system.memory() == {(Tier.DISK, MemoryUse.ROWS): 20 * 4, (Tier.DISK, MemoryUse.STATE): 5 * 4}


def test_a_table_takes_its_files_and_no_memory(directory: Path) -> None:
    def own_bytes() -> int:
        pages = Path("/proc/self/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")  # resident, without files

    before = own_bytes()
    system = MappedTable(spec(table("large", 500_000, 128), device="cpu"))
    assert sum(file.stat().st_blocks * 512 for file in directory.rglob("weights")) >= 256_000_000
    assert own_bytes() - before < 64 << 20
    del system
    assert not list(directory.iterdir())


def test_full_drive_is_an_error_of_the_build_and_leaves_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left") as caught:
        MappedTable(spec(*UNIFORM, device="cpu"))
    assert caught.value.errno == errno.ENOSPC
    del caught
    assert not list(directory.iterdir())


def test_it_asks_for_a_drive_and_a_cpu() -> None:
    setting = spec(table("a", 3, 4), device="cuda", kind=OptimizerKind.ADAGRAD)
    assert MappedTable.required_bytes(setting) == {Tier.DISK: 2 * 3 * 4 * 4}
    assert MappedTable.support(setting).verdict is Verdict.UNSUPPORTED
