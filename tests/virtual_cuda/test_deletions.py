"""The virtual device sees what is missing: without any one wait of the cache or the harness, some test fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

if "VCUDA_LATE" not in os.environ:
    pytest.skip("needs the virtual CUDA device, late: make test-virtual-cuda", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
STAGING, MOVER = "systems/freq_cache/cache/staging.py", "systems/freq_cache/cache/mover.py"
PIPELINE = "systems/freq_cache/pipeline.py"
DELIVERY, UVM = "suite/run/cell/feed.py", "systems/fbgemm/uvm_cache.py"


class Deletion(NamedTuple):
    name: str
    scenes: str
    file: str
    text: str
    instead: str = "pass"


ROOM, LOOKED_UP, COPIED = "room_in_staging and host", "only_looked_up and host", "copied_ahead"
HOME, LARGER, UVM_AHEAD = "home", "larger and exchanged", "fbgemm_prefetches"
DELETIONS = (
    Deletion("what arrives is used before it is there", ROOM, STAGING, "compute.wait_event(self.event)"),
    Deletion("what arrives is given back while it is used", LOOKED_UP, STAGING, "tensor.record_stream(compute)"),
    Deletion("what leaves is read before it is there", ROOM, STAGING, "self.event.synchronize()"),
    Deletion(
        "rows leave before they are made",
        ROOM,
        STAGING,
        "self._out.wait_stream(torch.cuda.current_stream(self.device))",
    ),
    Deletion("numbers are overwritten while they are sent", "faster", STAGING, " sent.synchronize()", " pass"),
    Deletion("pinned staging is overwritten while it is sent", ROOM, STAGING, "self._sent.synchronize()"),
    Deletion("staging is overwritten while it is used", ROOM, STAGING, "stream.wait_event(self._used)"),
    Deletion("staging is used before it is filled", ROOM, STAGING, "compute.wait_event(self._sent)"),
    Deletion(
        "a lot is overwritten while it leaves",
        ROOM,
        STAGING,
        "torch.cuda.current_stream(self._transfer.device).wait_event(self._left)",
    ),
    Deletion("late rows are read before they are written back", "slow_writer", MOVER, "self._writer.wait(after)"),
    Deletion(
        "rows are sent before they are written back",
        ROOM,
        MOVER,
        "has = plan.fetch_after <= self._writer.landed",
        "has = plan.fetch_after <= 2**30",
    ),
    Deletion(
        "staging is given back while it is used", "staging_that_is", STAGING, "self._device.record_stream(compute)"
    ),
    Deletion("a tensor is given back while it leaves", "while_it_leaves", STAGING, "tensor.record_stream(stream)"),
    Deletion(
        "the host reads rows before the device writes them home", LARGER, MOVER, "write.records.wait()\n", "pass\n"
    ),
    Deletion("rows are read before the device wrote them home", HOME, STAGING, "self._in.wait_stream(self._out)"),
    Deletion("records are given back while they go home", HOME, STAGING, "records.record_stream(stream)"),
    Deletion("numbers are given back while they go home", HOME, STAGING, "rows.record_stream(stream)"),
    Deletion("a batch is moved while it is sent", "slow_reader", PIPELINE, "coming.sending.wait()"),
    Deletion("fbgemm reads a batch before it arrives", UVM_AHEAD, UVM, "self._reading.wait_event(arrived)"),
    Deletion("fbgemm fills before it has read", UVM_AHEAD, UVM, "self._side.wait_stream(self._reading)"),
    Deletion("fbgemm looks up before it has filled", UVM_AHEAD, UVM, "torch.cuda.current_stream().wait_event(arrived)"),
    Deletion("a batch is trained before it arrives", COPIED, DELIVERY, "compute.wait_event(copied)"),
    Deletion("a batch is given back while it is trained", COPIED, DELIVERY, "part.record_stream(compute)"),
)
"""Those that were seen to be found, and the scenes in which they are."""


@pytest.mark.parametrize("deletion", DELETIONS, ids=lambda deletion: deletion.name)
def test_a_deleted_wait_is_found(deletion: Deletion, tmp_path: Path) -> None:
    for package in ("suite", "systems", "tests", "workloads"):
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "golden", "browser")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / deletion.file
    source = file.read_text(encoding="utf-8")
    assert source.count(deletion.text) == 1
    file.write_text(source.replace(deletion.text, deletion.instead), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "tests/virtual_cuda/test_orders.py",
        "-k",
        deletion.scenes,
    ]
    environment = os.environ | {"VCUDA_REPORT": str(tmp_path / "in_vain")}  # what goes wrong here is meant to
    ended = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 1, ended.stdout[-2_000:] + ended.stderr[-2_000:]
    assert "1 failed" in ended.stdout or "1 error" in ended.stdout, ended.stdout[-2_000:]
