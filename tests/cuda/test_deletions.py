"""The virtual device sees what is missing: without any one wait of the cache or the harness, some test fails."""

import multiprocessing
import os
import signal
import sys
from importlib.machinery import SourceFileLoader
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

if "VCUDA_LATE" not in os.environ:
    pytest.skip("needs the virtual CUDA device, late: make test-virtual-cuda", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("deletions")]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STAGING, MOVER = "systems/freq_cache/cache/staging.py", "systems/freq_cache/cache/mover.py"
PIPELINE = "systems/freq_cache/pipeline.py"
DELIVERY, UVM = "suite/run/cell/feed.py", "systems/fbgemm/uvm.py"


class Deletion(NamedTuple):
    name: str
    scenes: str
    file: str
    text: str
    instead: str = "pass"


ROOM, LOOKED_UP, COPIED = "room_in_staging and host", "only_looked_up and host", "copied_ahead"
HOME, LARGER, UVM_AHEAD = "home", "larger and exchanged", "read_ahead"
DELETIONS = (
    Deletion("what arrives is used before it is there", ROOM, STAGING, "compute.wait_event(self.event)"),
    Deletion("what arrives is given back while it is used", LOOKED_UP, STAGING, "self.whole.record_stream(compute)"),
    Deletion("what leaves is read before it is there", ROOM, STAGING, "self.event.synchronize()"),
    Deletion("rows leave before they are made", ROOM, STAGING, "self._out.wait_stream(compute)"),
    Deletion("pinned staging is overwritten while it is sent", ROOM, STAGING, "self._sent.synchronize()"),
    Deletion("staging is overwritten while it is used", ROOM, STAGING, "stream.wait_event(self._used)"),
    Deletion("staging is used before it is filled", ROOM, STAGING, "compute.wait_event(self._sent)"),
    Deletion("a lot is overwritten", ROOM, STAGING, "compute.wait_event(self._left)"),
    Deletion("late rows are read before they are written back", "slow_writer", MOVER, "self._writer.wait(after)"),
    Deletion(
        "rows are sent before they are written back",
        "slow_writer",
        MOVER,
        "has = plan.fetch_after <= self._writer.landed",
        "has = plan.fetch_after <= 2**30",
    ),
    Deletion("staging is given back", "staging_that_is", STAGING, "self._device.record_stream(compute)"),
    Deletion("a tensor is given back while it leaves", "while_it_leaves", STAGING, "tensor.record_stream(stream)"),
    Deletion("the host reads rows before they are home", LARGER, MOVER, "write.records.wait()\n", "pass\n"),
    Deletion("rows are read before the device wrote them home", HOME, STAGING, "self._in.wait_stream(self._out)"),
    Deletion("records are given back while they go home", HOME, STAGING, "records.record_stream(stream)"),
    Deletion("numbers are given back while they go home", HOME, STAGING, "rows.record_stream(stream)"),
    Deletion("a batch is moved while it is sent", "slow_reader", PIPELINE, "sending.wait()"),
    Deletion("fbgemm reads a batch before it arrives", UVM_AHEAD, UVM, "self._reading.wait_event(arrived)"),
    Deletion("fbgemm fills before it has read", UVM_AHEAD, UVM, "self._side.wait_stream(reading)"),
    Deletion("fbgemm looks up before it has filled", UVM_AHEAD, UVM, "torch.cuda.current_stream().wait_event(ready)"),
    Deletion("a batch is trained before it arrives", COPIED, DELIVERY, "compute.wait_event(copied)"),
    Deletion("a batch is given back while it is trained", COPIED, DELIVERY, "part.record_stream(compute)"),
)
"""Those that were seen to be found, and the scenes in which they are."""
ATTEMPTS = 4


def run_scenes(deletion: Deletion, folder: Path) -> None:
    """Run the scenes of a deletion in this process, which has not imported the project."""
    assert not {"suite", "systems"} & sys.modules.keys()
    os.environ["VCUDA_REPORT"] = str(folder / "in_vain")  # what goes wrong here is meant to
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    unchanged = SourceFileLoader.get_code

    def changed(loader: SourceFileLoader, name: str) -> CodeType | None:
        """The code of the module as it would be without what is deleted."""
        if loader.path != str(ROOT / deletion.file):
            return unchanged(loader, name)
        source = Path(loader.path).read_text(encoding="utf-8")
        assert source.count(deletion.text) == 1
        return compile(source.replace(deletion.text, deletion.instead), loader.path, "exec")

    SourceFileLoader.get_code = changed  # type: ignore[method-assign]
    scenes = str(HERE / "test_orders.py"), "-k", deletion.scenes
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *scenes]))


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    """Processes that are forked where the libraries, and nothing of the project, are imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torchrec", "triton.runtime.interpreter", "hypothesis", "pandas", "pydantic"])
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # importing opens no device, which could not be forked
    return context


@pytest.mark.parametrize("deletion", DELETIONS, ids=lambda deletion: deletion.name)
def test_a_deleted_wait_is_found(deletion: Deletion, forks: ForkServerContext, tmp_path: Path) -> None:
    """By a test that fails, or by a crash: memory may be used that was given back.

    Some show only if host threads meet so; the scenes are run again then.
    """
    output = ""
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process = forks.Process(target=run_scenes, args=(deletion, folder))
        process.start()
        process.join(280)
        process.kill()
        output = (folder / "output").read_text()
        if process.exitcode == -signal.SIGSEGV:
            return
        if process.exitcode == 1:
            assert "1 failed" in output or "1 error" in output, output[-2_000:]
            return
        assert process.exitcode == 0, output[-2_000:]
    raise AssertionError(f"not found in {ATTEMPTS} attempts: {output[-2_000:]}")
