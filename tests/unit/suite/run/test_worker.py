"""Messages of a worker, the status of an exception, and whole cells in this process, which end as they should."""

import errno
from multiprocessing import Pipe

import pytest
import torch

from suite.records.record import Status
from suite.run.worker import CODE, CellResult, Progress, Reporter, RunCell, _changed, _outcome, status_of
from tests.faults.cells import fake, tiny_cell


def outcome(system, **changes):
    return _outcome(RunCell(cell=tiny_cell(system, **changes)), iter(()), Reporter(None))


@pytest.mark.parametrize(
    ("system", "status", "reason"),
    [
        (fake("NoMemory"), Status.OOM_HOST, "MemoryError: no message; use a smaller --scale"),
        (fake("DeviceFull"), Status.OOM_DEVICE, "Tried to allocate 20.00 GiB.; use a smaller --cache-ratio"),
        (fake("PinnedMemoryFull"), Status.OOM_HOST, "CUDA error: out of memory; use a smaller --scale"),
        (
            fake("DiskFull"),
            Status.OOM_DISK,
            "RuntimeError: rows could not be written back; make room, or set TMPDIR to",
        ),
        (fake("BuildFails"), Status.CRASHED, "ValueError: rows of width 4 do not fit a tile of 64:"),
        (fake("SaysWhatItNeeds"), Status.UNAVAILABLE, "needs frobnicate 2 or later: pip install 'frobnicate>=2'"),
        ("tests.faults.needy:System", Status.UNAVAILABLE, "pip install no-such-package-anywhere"),
        ("tests.faults.absent:System", Status.UNAVAILABLE, "import tests.faults.absent: check its name, and"),
        ("tests.faults.broken:System", Status.CRASHED, "RuntimeError: no licence file found: set FROB_LICENCE"),
        ("tests.faults.fakes:Absent", Status.CRASHED, "tests.faults.fakes:Absent is not an EmbeddingSystem"),
        (fake("TooLarge"), Status.INFEASIBLE, "a batch has 900 distinct rows, the cache 512: give --cache-ratio 0.5"),
        (fake("Unsupported"), Status.UNSUPPORTED, "no row-wise Adagrad: use --optimizer sgd"),
        (fake("NeedsMoreThanThereIs"), Status.INFEASIBLE, "use a smaller --scale or --embedding-dim"),
        (fake("NeedsMoreDiskThanThereIs"), Status.INFEASIBLE, "needs 1000000000.0 GB at "),
        ("tests.faults.wrong:NanOutput", Status.WRONG_ANSWER, "sgd: losses: differs by nan"),
    ],
    ids=lambda value: value.rpartition(":")[2] if isinstance(value, str) and value.startswith("tests.") else "",
)
def test_cell_of_a_faulty_system_ends_as(system, status, reason):
    ended = outcome(system)
    assert ended.status is status
    assert reason in ended.reason
    assert "\n" not in ended.reason
    assert ended.measurement is None
    assert (ended.verification is not None) == (status is Status.WRONG_ANSWER)


@pytest.mark.slow
def test_diverging_loss_crashes_the_cell_and_names_the_learning_rate():
    ended = outcome("reference", lr=1e25)
    assert ended.status is Status.CRASHED
    assert "the loss is " in ended.reason
    assert "lower --lr" in ended.reason


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"), Status.OOM_HOST),
        (OSError("x"), Status.CRASHED),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), Status.OOM_DISK),
    ],
)
def test_status_of_an_exception(error, status):
    assert status_of(error) is status


@pytest.mark.parametrize(("free", "status"), [(20 << 30, Status.OOM_HOST), (1 << 20, Status.OOM_DEVICE)])
def test_driver_that_is_out_of_memory_means_the_hosts_unless_the_device_is_full(monkeypatch, free, status):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 << 30))
    assert status_of(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be")) is status


def test_reporter_sends_every_phase_and_beats_after_a_pause_alone(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("suite.run.worker.time.monotonic", lambda: now[0])
    received, pipe = Pipe(duplex=False)
    reporter = Reporter(pipe)
    reporter.phase("build")
    reporter.phase("train")
    reporter.beat(1, 9)
    now[0] += 0.3
    reporter.beat(2, 9)
    reporter.send(CellResult(status=Status.OK))
    assert [received.recv() for _ in range(4)] == [
        Progress(phase="build"),
        Progress(phase="train"),
        Progress(phase="train", step=2, steps=9),
        CellResult(status=Status.OK),
    ]


def test_worker_with_other_code_than_the_run_began_with_measures_nothing(monkeypatch):
    monkeypatch.setenv(CODE, "another")
    ended = _changed()
    assert (ended.status, ended.reason.partition(" are ")[2]) == (
        Status.CRASHED, "not those that the run began with: start it again",
    )  # fmt: skip
