"""The parent's side of a worker process: start it, send requests, read answers, enforce limits, kill it."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

from suite.records.record import Cell, Status
from suite.records.scales import scale_of
from suite.run.forkserver import fork_worker
from suite.run.locks import cell_directory, is_disk_full
from suite.run.memory_group import remove_stale_groups
from suite.run.resources import available_host_bytes, kernel_kills, tree_rss_bytes
from suite.run.worker import Answer, CellResult, Progress, Request, RunCell

_GRACE_S = 10.0
"""Seconds that a worker may take to end after its last message, or to be reaped after a kill."""
_POLL_S = 0.25
_HOST_SHARE = 0.95
"""Share of the available host memory that a worker may use before it is killed, ahead of the kernel's OOM killer."""

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a worker.

    Attributes:
        wall_s: Seconds from its first request to its end.
        stall_s: Seconds without a message.
        host_bytes: Resident memory of the process tree; above it the worker is killed, ahead of the OOM killer.
    """

    wall_s: float
    stall_s: float
    host_bytes: int


def limits_of(cell: Cell, *, timeout_s: float | None, cells: int = 1) -> Limits:
    """Limits of a worker that runs a cell, or times `cells` systems; without `timeout_s` the scale's timeout."""
    scale = scale_of(cell.scale, on_drive=cell.host_budget_bytes is not None)
    return Limits(
        wall_s=cells * (timeout_s if timeout_s is not None else scale.timeout_s),
        stall_s=scale.stall_s,
        host_bytes=int(_HOST_SHARE * available_host_bytes()),
    )


def run_in_process(
    request: RunCell, *, limits: Limits, log: Path, on_progress: OnProgress = lambda _: None
) -> CellResult:
    """Run a cell in a process of its own. On Ctrl-C its status is `interrupted`."""
    started = time.monotonic()
    try:
        with WorkerProcess(log) as mine:
            try:
                mine.ask(request)
                answer = mine.answer(limits, on_progress)
            except KeyboardInterrupt:
                answer = CellResult(status=Status.INTERRUPTED, reason="stopped by Ctrl-C")
    except OSError as error:
        return not_started(error)
    assert isinstance(answer, CellResult)
    return answer.model_copy(update={"phase": mine.phase, "wall_s": time.monotonic() - started})


def not_started(error: OSError) -> CellResult:
    """Result of a cell, or of a timing group, whose process, log or directory could not be created."""
    full = is_disk_full(error)
    remedy = "; make room under --out and TMPDIR, or name other directories" if full else ""
    status, reason = Status.OOM_DISK if full else Status.CRASHED, f"could not be started: {error}{remedy}"
    return CellResult(status=status, reason=reason, phase="start")


class WorkerProcess(AbstractContextManager["WorkerProcess"]):
    """A process that waits for requests, in a session of its own. Leaving the context kills it and its descendants.

    Args:
        log: File for the output of the process.

    Attributes:
        phase: Last reported phase.
        returncode: Exit code of the process, once `wait` has seen its end.

    Raises:
        OSError: the process, log or temporary directory could not be created.
    """

    def __init__(self, log: Path) -> None:
        self.phase = "start"
        self._log = log
        self.returncode: int | None = None
        self._kills_before = kernel_kills()
        self._asked: float | None = None
        stdin, self._requests = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        self._ended, ended = Pipe(duplex=False)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        with ExitStack() as mine, stdin, answers, ended, log.open("ab") as output:  # all processes of it append there
            for end in (self._requests, self._answers, self._ended):
                mine.enter_context(end)
            folder = mine.enter_context(cell_directory())
            self.pid = fork_worker(folder, [end.fileno() for end in (stdin, answers, output, ended)])
            mine.callback(self._kill)
            self._resources = mine.pop_all()

    def __exit__(self, *_: object) -> None:
        self._resources.close()
        remove_stale_groups()

    def _kill(self) -> None:
        """Kill the worker; the forkserver adopts and kills what it leaves behind, and then tells of its end."""
        if self.wait() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGKILL)
        self.wait(_GRACE_S)  # it may be stuck in a driver call: the other cells continue

    def wait(self, timeout: float = 0.0) -> int | None:
        """Wait for the worker's end. Returns its exit code, negative for a signal; None after `timeout` seconds."""
        if self.returncode is None and self._ended.poll(timeout):
            try:
                self.returncode = self._ended.recv()
            except EOFError:  # the forkserver was killed with it
                self.returncode = -signal.SIGKILL
        return self.returncode

    def ask(self, request: Request) -> None:
        """Send a request. If the worker died before reading it, `answer` reports its exit."""
        if self._asked is None:
            self._asked = time.monotonic()
        with suppress(BrokenPipeError):
            self._requests.send(request)

    def answer(self, limits: Limits, on_progress: OnProgress = lambda _: None) -> Answer:
        """The next answer; without one, a `CellResult` with the broken limit or the exit.

        Wall time counts from the first request, silence from this call or the last message.
        """
        heard = time.monotonic()
        while True:
            # waiting messages are read before limits are checked: this process may have been stopped meanwhile
            if not self._answers.poll() and (broken := self._broken_limit(limits, heard)):
                return broken
            if self._answers.poll(_POLL_S):
                try:
                    message: Progress | Answer = self._answers.recv()
                except (EOFError, OSError):  # it ended, perhaps in the middle of a message, and its orphans too
                    self.wait(_GRACE_S)  # it may still write a core dump or flush its log
                    return self._post_mortem()
                if not isinstance(message, Progress):
                    return message
                self.phase, heard = message.phase, time.monotonic()
                on_progress(message)

    def _broken_limit(self, limits: Limits, heard: float) -> CellResult | None:
        now, status, used = time.monotonic(), Status.TIMEOUT, 0
        if now - (self._asked or now) > limits.wall_s:
            reason = f"still in phase '{self.phase}' after {limits.wall_s:.0f} s: raise --timeout"
        elif now - heard > limits.stall_s:
            reason = f"no sign of life for {limits.stall_s:.0f} s in phase '{self.phase}'"
        elif (used := tree_rss_bytes(self.pid)) > limits.host_bytes:
            status = Status.OOM_HOST
            reason = (
                f"the process tree held {used / 1e9:.1f} GB of host memory in phase '{self.phase}', "
                f"the limit is {limits.host_bytes / 1e9:.1f} GB: use a smaller --scale, --embedding-dim or --batch-size"
            )
        else:
            return None
        return CellResult(status=status, reason=reason)

    def _post_mortem(self) -> CellResult:
        """Result of a worker that ended without one, from its exit code and log."""
        code = self.returncode
        if code == -signal.SIGKILL and kernel_kills() > self._kills_before:
            return CellResult(status=Status.OOM_HOST, reason="the kernel killed the worker for want of memory")
        if code == -signal.SIGKILL:
            reason = "the worker was killed from outside (SIGKILL): by a person, a job scheduler or for want of memory"
        elif code is not None and code < 0:
            known = -code in list(signal.Signals)  # a realtime signal has no name
            reason = f"the worker died of {signal.Signals(-code).name if known else f'signal {-code}'}"
        else:
            reason = f"the worker ended with exit code {code} and no result"
        with self._log.open("rb") as output:
            output.seek(max(0, self._log.stat().st_size - 4096))
            lines = output.read().decode(errors="replace").split("\n")
        last = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
        return CellResult(status=Status.CRASHED, reason=reason + (f"; its last line: {last}" if last else ""))
