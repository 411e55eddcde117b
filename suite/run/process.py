"""The parent's side of a worker process: start it, send requests, read answers, enforce limits, kill it."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from suite.records.record import Cell, Status
from suite.records.scales import scale_of
from suite.run.forkserver import fork_worker
from suite.run.locks import cell_directory, is_disk_full
from suite.run.memory_group import remove_stale_groups
from suite.run.resources import available_host_bytes, kernel_kills, tree_rss_bytes
from suite.run.worker import ANSWERS, Ack, CellResult, Progress, RunCell, StepTiming, encode

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


@dataclass(frozen=True)
class Ended:
    """End of a cell's process: its result (its own, or one from its exit), its last phase, and its duration."""

    outcome: CellResult
    phase: str
    wall_s: float


def run_in_process(request: RunCell, *, limits: Limits, log: Path, on_progress: OnProgress = lambda _: None) -> Ended:
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
        return Ended(not_started(error), "start", 0.0)
    assert isinstance(answer, CellResult)
    return Ended(answer, mine.phase, time.monotonic() - started)


def not_started(error: OSError) -> CellResult:
    """Result of a cell, or of a timing group, whose process, log or directory could not be created."""
    if is_disk_full(error):
        reason = f"could not be started: {error}; make room under --out and TMPDIR, or name other directories"
        return CellResult(status=Status.OOM_DISK, reason=reason)
    return CellResult(status=Status.CRASHED, reason=f"could not be started: {error}")


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
        self._buffer = b""
        with ExitStack() as mine, ExitStack() as theirs:
            folder, keep = mine.enter_context(cell_directory())
            stdin, self._stdin = _pipe(theirs, mine)
            self._messages, messages = _pipe(mine, theirs)
            self._ended, ended = _pipe(mine, theirs)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.unlink(missing_ok=True)
            output = theirs.enter_context(log.open("ab"))  # all processes of the worker append to it
            fds = [stdin, messages, output.fileno(), keep, ended]
            self.pid = fork_worker(folder, fds)
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
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = int(os.read(self._ended, 64) or -9)  # EOF: the forkserver was killed with it
        return self.returncode

    def ask(self, request: BaseModel) -> None:
        """Send a request. If the worker died before reading it, `answer` reports its exit."""
        if self._asked is None:
            self._asked = time.monotonic()
        line = encode(request)
        with suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._stdin, line) :]

    def answer(self, limits: Limits, on_progress: OnProgress = lambda _: None) -> Ack | StepTiming | CellResult:
        """The next answer other than `Progress`; without one, a `CellResult` with the broken limit or the exit.

        Wall time counts from the first request, silence from this call or the last message.
        """
        heard = time.monotonic()
        while True:
            while (answer := self._next_line()) is not None:
                if not isinstance(answer, Progress):
                    return answer
                self.phase = answer.phase
                on_progress(answer)
                heard = time.monotonic()
            # waiting messages are read before limits are checked: this process may have been stopped meanwhile
            waiting = select.select([self._messages], [], [], 0)[0]
            if not waiting and (broken := self._broken_limit(limits, heard)):
                return broken
            # checked first: its last message is in the pipe by then. An orphan may hold the pipe open.
            ended = self.wait() is not None
            if select.select([self._messages], [], [], 0 if ended else _POLL_S)[0]:
                chunk = os.read(self._messages, 1 << 16)
                self._buffer += chunk
                if not chunk:
                    self.wait(_GRACE_S)  # it may still write a core dump or flush its log
                    return self._post_mortem()
            elif ended:
                return self._post_mortem()

    def _next_line(self) -> Progress | Ack | StepTiming | CellResult | None:
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        try:
            return ANSWERS.validate_json(line)
        except ValueError as error:
            reason = f"the worker sent a line that is no message: {str(error).splitlines()[0]}"
            return CellResult(status=Status.CRASHED, reason=reason)

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


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with their stacks."""
    ends = os.pipe()
    for fd, stack in zip(ends, (reader, writer), strict=True):
        stack.callback(os.close, fd)
    return ends
