"""The worker process: runs one cell (`suite.run.cell.experiment`), or times systems (`suite.run.turns.host`).

Forked by `suite.run.forkserver`, or a new interpreter that calls `main`. It receives requests from standard input and
sends answers to a pipe of their own, so that output of a system is not mistaken for an answer. The parent keeps
standard input open while it lives; when it closes, the worker kills itself.
"""

import importlib.util
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Container, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import psutil

from suite.records.environment import PROJECT, code_digest
from suite.records.measured import BeladyBound, Model
from suite.records.record import Cell, Measurement, Status, Verification
from suite.run.locks import is_disk_full

CODE = "EMBEDDING_BENCH_CODE"
"""Environment variable of a worker: the digest of the code that its records name."""
_BEAT_S = 0.25
_CHILDREN_S = 5.0
"""Seconds to wait for the end of killed children."""
_REMEDIES = {
    Status.OOM_DEVICE: "use a smaller --cache-ratio, --device-budget, --batch-size or --scale",
    Status.OOM_DISK: "make room, or set TMPDIR to a directory on a drive with more",
    Status.OOM_HOST: "use a smaller --scale, --embedding-dim or --batch-size",
}
_FULL_BYTES = 1 << 30
"""A device with less free memory counts as full: the driver needs the rest to load kernels."""
_STATUS_BY_NAME = {"WorkingSetTooLarge": Status.INFEASIBLE, "CgroupUnavailable": Status.UNSUPPORTED}
"""Status by name of exceptions whose modules are not imported here."""


class RunCell(Model):
    """Runs a cell; the answer is a `CellResult`.

    Attributes:
        rows: File for sampled rows, written after training; None: none is written.
        optima: Folder of optima that were replayed, so that none is replayed twice; None: none is kept.
    """

    cell: Cell
    rows: Path | None = None
    optima: Path | None = None


class Build(Model):
    """Builds a system that is to be timed, and makes this a timing worker; the answer is None.

    Where the system is there already, a new build of all begins: those that are there are freed first.

    Attributes:
        name: Participant name.
        cell: Its cell, of the same setting as the others of this worker.
        steps: Steps that it will train after the build.
    """

    name: str
    cell: Cell
    steps: int


class RunSteps(Model):
    """Trains a system for some steps; the answer is a `StepTiming`.

    Attributes:
        steps: Timed steps.
        lead_steps: Untimed steps before them.
        embeddings_only: Train without the MLPs.
    """

    name: str
    steps: int
    lead_steps: int = 0
    embeddings_only: bool = False


Request = RunCell | Build | RunSteps


class Progress(Model):
    """A progress message. Only the training thread sends it, so a hung system sends none."""

    phase: str
    step: int = 0
    steps: int = 0


class StepTiming(Model):
    """Timing of one `RunSteps`.

    Attributes:
        seconds: Seconds from device synchronisation to device synchronisation.
        wait_s: Part of `seconds` in which the training thread waited for batches.
        loss: Loss of the last step, in hexadecimal, so that every bit is kept.
        read_bytes, written_bytes: Bytes that the process read from and wrote to drives.
        rows_read: Rows that the system read from its file, if it counts them.
    """

    seconds: float
    wait_s: float
    loss: str
    read_bytes: int = 0
    written_bytes: int = 0
    rows_read: int | None = None


class CellResult(Model):
    """Result of a cell from its own process, or the reason why a timing worker stopped. The last message.

    Attributes:
        phase, wall_s: Last reported phase and duration of the process, which its parent adds.
    """

    status: Status
    reason: str = ""
    phase: str = ""
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    verification: Verification | None = None
    measurement: Measurement | None = None
    optimum: BeladyBound | None = None


Answer = StepTiming | CellResult | None


class Reporter:
    """Sends progress to the parent process, at most four times a second while a phase lasts.

    Args:
        pipe: Without one nothing is sent.

    Attributes:
        notes: Sentences for the record about changes and failures of the harness.
    """

    def __init__(self, pipe: Connection | None) -> None:
        self._pipe = pipe
        self._phase = "start"
        self._last = 0.0
        self.notes: list[str] = []

    def phase(self, name: str) -> None:
        """Start a new phase, which ends the previous one."""
        self._phase = name
        self.send(Progress(phase=name))

    def beat(self, step: int = 0, steps: int = 0) -> None:
        """Send progress within the phase, unless a message was sent less than `_BEAT_S` ago."""
        if time.monotonic() - self._last >= _BEAT_S:
            self.send(Progress(phase=self._phase, step=step, steps=steps))

    def send(self, message: Progress | Answer) -> None:
        """Send a message at once."""
        self._last = time.monotonic()
        if self._pipe is not None:
            self._pipe.send(message)


def main(messages: int) -> NoReturn:
    """Serve the requests on standard input, and send the result to a file descriptor."""
    requests: SimpleQueue[Request] = SimpleQueue()
    threading.Thread(target=_receive_until_the_parent_dies, args=(requests,), daemon=True).start()
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the log would drown
    reporter = Reporter(Connection(messages, readable=False))
    reporter.send(_changed() or _outcome(requests.get(), iter(requests.get, None), reporter))
    # A library's exit handlers must not turn a finished cell into a crashed one.
    sys.stdout.flush()
    os._exit(0)


def _changed() -> CellResult | None:
    """A failure if this process's code differs from the code that records will name: another copy, or edited files."""
    if code_digest(PROJECT) == os.environ[CODE]:
        return None
    reason = f"the source files in {PROJECT} are not those that the run began with: start it again"
    return CellResult(status=Status.CRASHED, reason=reason)


def _outcome(request: Request, following: Iterator[Request], reporter: Reporter) -> CellResult:
    """Serve a request; an exception becomes a status and a reason, and its traceback goes to the log."""
    reporter.send(Progress(phase="import"))
    try:
        if isinstance(request, Build):
            from suite.run.turns.host import serve

            serve(request, following, reporter)
        assert isinstance(request, RunCell)
        if request.cell.ranks is not None:
            from suite.run.ranks.rank import launch

            return launch(request.cell, reporter)
        from suite.run.cell.experiment import run_cell

        return run_cell(request, reporter)
    except Exception as error:
        traceback.print_exc()
        return CellResult(status=status_of(error), reason=describe(error))


def _receive_until_the_parent_dies(requests: SimpleQueue[Request]) -> None:
    """Queue requests. When the parent closes standard input or dies, kill this worker and all its processes."""
    stdin = Connection(0, writable=False)
    try:
        while True:
            requests.put(stdin.recv())
    finally:
        kill_children()
        os.killpg(os.getpgrp(), signal.SIGKILL)


def kill_children(*, spare: Container[int] = ()) -> None:
    """Kill all children of this process except `spare`, and the orphans that these leave to it, and reap them."""
    end = time.monotonic() + _CHILDREN_S
    while time.monotonic() < end:
        found = [child for child in psutil.Process().children() if child.pid not in spare]
        if not found:
            return
        for child in found:
            with suppress(psutil.Error):
                child.kill()
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
        time.sleep(0.002)


def status_of(error: BaseException) -> Status:
    """The status that an exception stands for."""
    name, text = type(error).__name__, str(error)
    if name == "OutOfMemoryError" or "CUDA out of memory" in text:  # torch's allocator of device memory
        return Status.OOM_DEVICE
    if "CUDA error: out of memory" in text:  # the driver: usually it could not pin host memory
        return Status.OOM_DEVICE if _device_is_full() else Status.OOM_HOST
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return Status.OOM_HOST
    if is_disk_full(error):
        return Status.OOM_DISK
    if isinstance(error, ImportError):
        return Status.UNAVAILABLE
    return _STATUS_BY_NAME.get(name, Status.CRASHED)


def _device_is_full() -> bool:
    """Whether the CUDA device has no memory left; false if none was used."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.mem_get_info()[0] < _FULL_BYTES


def describe(error: BaseException) -> str:
    """One line that says what went wrong, and for a missing package what to install."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    if isinstance(error, ImportError) and error.name:
        package = error.name.partition(".")[0]
        if package in sys.modules or importlib.util.find_spec(package) is not None:
            return f"cannot import {error.name}: check its name, and the version of {package} ({first})"
        return f"cannot import {package}: run make setup, or pip install {package.replace('_', '-')} ({first})"
    remedy = _REMEDIES.get(status_of(error))
    return f"{type(error).__name__}: {first}" + (f"; {remedy}" if remedy else "")
