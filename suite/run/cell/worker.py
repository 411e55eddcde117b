"""The child process: runs one cell (`suite.run.cell.experiment`), or is the host of systems that take turns.

Forked by `suite.run.cell.zygote`, or started as `python -m suite.run.cell.worker FD`. Requests come as lines of JSON on
standard input, answers leave through file descriptor FD. Standard input stays open for as long as the parent lives;
when it closes, the worker ends itself.
"""

import importlib.util
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from queue import SimpleQueue
from typing import NoReturn

from suite.records.status import Status
from suite.run.cell.reporter import Reporter
from suite.run.ending import MARK, kill_marked
from suite.run.messages import REQUESTS, Host, Outcome, Progress, Request, RunCell
from suite.run.scratch import is_disk_full

_REMEDIES = {
    Status.OOM_DEVICE: "use a smaller --cache-ratio, --device-budget, --batch-size or --scale",
    Status.OOM_DISK: "make room, or set TMPDIR to a directory on a drive with more",
    Status.OOM_HOST: "use a smaller --scale, --embedding-dim or --batch-size",
}
_STATUS_BY_NAME = {"WorkingSetTooLarge": Status.INFEASIBLE, "CannotHold": Status.UNSUPPORTED}
"""Of errors whose modules this one does without."""


def main(messages: int) -> NoReturn:
    """Do what standard input asks for, and report how it ended through a file descriptor."""
    pipe = os.fdopen(messages, "wb")
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_until_the_parent_dies, args=(lines,), daemon=True).start()
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the log would drown
    reporter = Reporter(pipe)
    requests = map(REQUESTS.validate_json, iter(lines.get, None))
    reporter.send(_outcome(next(requests), requests, reporter))
    # A library's exit handlers must not turn a finished cell into a crashed one.
    sys.stdout.flush()
    os._exit(0)


def _outcome(request: Request, following: Iterator[Request], reporter: Reporter) -> Outcome:
    """Do what is asked for; every exception becomes a status and a sentence, its traceback goes to the log."""
    reporter.send(Progress(phase="import"))
    try:
        match request:
            case RunCell(cell=cell) if cell.ranks is not None:
                from suite.run.ranks.launch import launch

                return launch(cell, reporter)
            case RunCell(cell=cell, optima=optima, rows=rows):
                from suite.run.cell.experiment import run_cell

                return run_cell(cell, reporter, known=optima, rows=rows)
            case Host():
                from suite.run.turns.host import serve

                return serve(request, following, reporter)
            case _:
                return Outcome(status=Status.CRASHED, reason=f"nobody takes turns yet: '{request.kind}' came first")
    except Exception as error:
        traceback.print_exc()
        return Outcome(status=status_of(error), reason=describe(error))


def status_of(error: BaseException) -> Status:
    """The status that an exception stands for."""
    name, text = type(error).__name__, str(error)
    if name == "OutOfMemoryError" or "CUDA out of memory" in text or "CUDA error: out of memory" in text:
        return Status.OOM_DEVICE
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return Status.OOM_HOST
    if is_disk_full(error):
        return Status.OOM_DISK
    if isinstance(error, ImportError):
        return Status.UNAVAILABLE
    return _STATUS_BY_NAME.get(name, Status.CRASHED)


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


def _read_until_the_parent_dies(lines: SimpleQueue[bytes]) -> None:
    """Hand on what standard input says. When the parent closes it, on purpose or by dying, end all that it started."""
    # not sys.stdin, whose lock, held here, would abort an interpreter that a system's sys.exit() ends in order
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as requests:
        for line in requests:
            lines.put(line)
    if MARK in os.environ:
        kill_marked(os.environ[MARK], spare=os.getpid())
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
