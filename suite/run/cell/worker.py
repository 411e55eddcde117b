"""The worker process: runs one cell (`suite.run.cell.experiment`), or is a timing worker (`suite.run.turns.host`).

Forked by `suite.run.cell.forkserver`, or started as `python -m suite.run.cell.worker FD`. It reads requests as lines of
JSON from standard input and writes answers to file descriptor FD. The parent keeps standard input open while it lives;
when it closes, the worker kills itself.
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from queue import SimpleQueue
from typing import NoReturn

from suite.records.environment import PROJECT, code_digest
from suite.records.record import Status
from suite.run.cell.failures import describe, status_of
from suite.run.cell.reporter import Reporter
from suite.run.kill import MARK, kill_marked
from suite.run.messages import REQUESTS, CellResult, Host, Progress, Request, RunCell
from suite.run.start import CODE


def main(messages: int) -> NoReturn:
    """Serve the requests on standard input, and write the result to a file descriptor."""
    pipe = os.fdopen(messages, "wb")
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_until_the_parent_dies, args=(lines,), daemon=True).start()
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the log would drown
    reporter = Reporter(pipe)
    requests = map(REQUESTS.validate_json, iter(lines.get, None))
    request = next(requests)
    reporter.send(_changed() or _outcome(request, requests, reporter))
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
                return CellResult(status=Status.CRASHED, reason=f"nobody takes turns yet: '{request.kind}' came first")
    except Exception as error:
        traceback.print_exc()
        return CellResult(status=status_of(error), reason=describe(error))


def _read_until_the_parent_dies(lines: SimpleQueue[bytes]) -> None:
    """Queue the lines of standard input. When the parent closes it or dies, kill this worker and all its processes."""
    # not sys.stdin: this thread would hold its lock, which aborts the interpreter if a system calls sys.exit()
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as requests:
        for line in requests:
            lines.put(line)
    if MARK in os.environ:
        kill_marked(os.environ[MARK], spare=os.getpid())
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
