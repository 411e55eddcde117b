"""The child process that runs one cell; what it does with it stands in `suite.run.cell.experiment`.

Started as `python -m suite.run.cell.worker FD`: a `Request` comes as one line of JSON on standard input, messages leave
through file descriptor FD. Standard input stays open for as long as the parent lives; when it closes, the worker ends
itself.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import traceback
import warnings

from suite.records.status import Status
from suite.run.cell.reporter import Reporter
from suite.run.killing import MARK, kill_marked
from suite.run.messages import Outcome, Request
from suite.run.scratch import is_disk_full

_REMEDIES = {
    Status.OOM_DEVICE: "use a smaller --cache-ratio, --device-budget, --batch-size or --scale",
    Status.OOM_DISK: "make room, or set TMPDIR to a directory on a drive with more",
    Status.OOM_HOST: "use a smaller --scale, --embedding-dim or --batch-size",
}


def main() -> None:
    """Run the cell that standard input names and report how it ended."""
    pipe = os.fdopen(int(sys.argv[1]), "wb")
    request = Request.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the log would drown
    reporter = Reporter(pipe)
    reporter.phase("import")
    reporter.finish(_outcome(request, reporter))
    # A library's exit handlers must not turn a finished cell into a crashed one.
    sys.stdout.flush()
    os._exit(0)


def _outcome(request: Request, reporter: Reporter) -> Outcome:
    """Run the cell; every exception becomes a status and a sentence, its traceback goes to the log."""
    try:
        from suite.run.cell.experiment import run_cell

        return run_cell(request.cell, reporter, known=request.optima)
    except Exception as error:
        traceback.print_exc()
        status = status_of(error)
        return Outcome(status=status, reason=describe(error))


def status_of(error: BaseException) -> Status:
    """The status that an exception stands for."""
    name, text = type(error).__name__, str(error)
    if name == "OutOfMemoryError" or "CUDA out of memory" in text or "CUDA error: out of memory" in text:
        return Status.OOM_DEVICE
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return Status.OOM_HOST
    if is_disk_full(error):
        return Status.OOM_DISK
    if name == "WorkingSetTooLarge":
        return Status.INFEASIBLE
    if isinstance(error, ImportError):
        return Status.UNAVAILABLE
    return Status.CRASHED


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


def _die_with_parent() -> None:
    """Wait for the parent to close standard input, on purpose or by dying, then end this process and all it started."""
    # not through sys.stdin: its lock, held here, would abort an interpreter that a system's sys.exit() ends in order
    while os.read(sys.stdin.fileno(), 1):
        pass
    if MARK in os.environ:
        kill_marked(os.environ[MARK], spare=os.getpid())
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
