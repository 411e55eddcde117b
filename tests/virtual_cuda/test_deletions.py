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
TRANSFER, BUFFERS, MOVER, WRITER, PIPELINE = (
    f"systems/freq_cache/{name}.py"
    for name in ("cache/transfer", "cache/buffers", "cache/mover", "cache/writer", "collection/pipeline")
)
DELIVERY = "suite/run/cell/delivery.py"


class Deletion(NamedTuple):
    name: str
    file: str
    text: str
    instead: str = "pass"


DELETIONS = (
    Deletion("what arrives is used before it is there", TRANSFER, "compute.wait_event(self.event)"),
    Deletion("what arrives is given back while it is used", TRANSFER, "tensor.record_stream(compute)"),
    Deletion("what leaves is read before it is there", TRANSFER, "self.event.synchronize()"),
    Deletion("what leaves is given back while it is copied", TRANSFER, "tensor.record_stream(stream)"),
    Deletion("rows are gathered before they are home", TRANSFER, "self._in.wait_stream(self._out)"),
    Deletion(
        "rows leave before they are made", TRANSFER, "self._out.wait_stream(torch.cuda.current_stream(self.device))"
    ),
    Deletion("numbers are overwritten while they are sent", TRANSFER, "sent.synchronize()"),
    Deletion("pinned staging is overwritten while it is sent", BUFFERS, "self._sent.synchronize()"),
    Deletion("staging is overwritten while it is used", BUFFERS, "stream.wait_event(self._used)"),
    Deletion("staging is used before it is filled", BUFFERS, "compute.wait_event(self._sent)"),
    Deletion("staging is given back while it is used", BUFFERS, "self._device.record_stream(compute)"),
    Deletion(
        "a lot is overwritten while it leaves",
        BUFFERS,
        "torch.cuda.current_stream(self._transfer.device).wait_event(self._left)",
    ),
    Deletion("row numbers are given back while rows are scattered", BUFFERS, "rows.record_stream(stream)"),
    Deletion("a lot is given back while it is scattered", BUFFERS, "records.record_stream(stream)"),
    Deletion("late rows are read before they are written back", MOVER, "self._writer.wait(after)"),
    Deletion(
        "rows are sent before they are written back",
        MOVER,
        "has = plan.fetch_after <= self._writer.landed",
        "has = plan.fetch_after <= 2**30",
    ),
    Deletion("rows are read before the device wrote them home", WRITER, "write.records.wait()\n            else"),
    Deletion("rows are moved before they are sent", PIPELINE, "coming.sending.wait()"),
    Deletion("a batch is trained before it arrives", DELIVERY, "compute.wait_event(copied)"),
    Deletion("a batch is given back while it is trained", DELIVERY, "part.record_stream(compute)"),
)


@pytest.mark.parametrize("deletion", DELETIONS, ids=lambda deletion: deletion.name)
def test_a_deleted_wait_is_found(deletion: Deletion, tmp_path: Path) -> None:
    for package in ("suite", "systems", "tests", "workloads"):
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "golden", "browser")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / deletion.file
    source = file.read_text(encoding="utf-8")
    assert source.count(deletion.text) == 1
    tail = "\n            else" if deletion.text.endswith("else") else ""
    file.write_text(source.replace(deletion.text, deletion.instead + tail), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "tests/virtual_cuda/test_orders.py",
    ]
    environment = os.environ | {"VCUDA_REPORT": str(tmp_path / "in_vain")}  # what goes wrong here is meant to
    ended = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 1, ended.stdout[-2_000:] + ended.stderr[-2_000:]
    assert "1 failed" in ended.stdout or "1 error" in ended.stdout, ended.stdout[-2_000:]
