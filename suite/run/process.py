"""One cell in a fresh process of its own: started, listened to, timed out, and killed with everything it started."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from suite.records.record import Cell, Optimum
from suite.records.status import Status
from suite.run.killing import GRACE_S, kill_tree
from suite.run.memory_probes import tree_rss_bytes
from suite.run.messages import Outcome, Progress, Request, decode
from suite.run.post_mortem import kernel_kills, post_mortem
from suite.run.scratch import cell_directory
from suite.run.starting import say, start

_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one cell may take.

    Attributes:
        wall_s: Seconds from start to end.
        stall_s: Seconds without a sign of life.
        host_bytes: Resident memory of the whole process tree; above it the cell ends before the kernel picks a victim.
    """

    wall_s: float
    stall_s: float
    host_bytes: int


@dataclass(frozen=True)
class Ended:
    """How the process ended: what it said last, or what became of it, and in which phase."""

    outcome: Outcome
    phase: str
    wall_s: float


class Cancelled(KeyboardInterrupt):
    """Ctrl-C arrived while the cell ran; it was killed and ended as `interrupted`."""

    def __init__(self, ended: Ended) -> None:
        super().__init__("interrupted")
        self.ended = ended


def run_in_process(
    cell: Cell,
    *,
    limits: Limits,
    log: Path,
    optima: tuple[Optimum, ...] = (),
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Ended:
    """Run a cell in a new process and session.

    Args:
        cell: What to run.
        limits: What it may take.
        log: Gets the output of the process.
        optima: Of cells that trained on the same stream.
        on_progress: Called with every sign of life.

    Raises:
        Cancelled: Ctrl-C arrived; the process tree is gone by then.
    """
    started = time.monotonic()
    kills_before = kernel_kills()
    mark = uuid.uuid4().hex
    with cell_directory() as (folder, keep):
        process, read_fd = start(log, mark=mark, folder=folder, keep=keep)
        watch = _Watch(process, read_fd=read_fd, limits=limits, started=started, on_progress=on_progress)
        try:
            say(process, Request(cell=cell, optima=optima))
            outcome = watch.until_the_end()
        except KeyboardInterrupt:
            outcome = Outcome(status=Status.INTERRUPTED, reason="stopped by Ctrl-C")
            raise Cancelled(Ended(outcome, watch.phase, time.monotonic() - started)) from None
        finally:
            kill_tree(process, mark=mark)
            watch.close()
    if outcome is None:
        outcome = post_mortem(process.returncode, log=log, kernel_killed=kernel_kills() > kills_before)
    return Ended(outcome, watch.phase, time.monotonic() - started)


class _Watch:
    """Listens to a worker and keeps its limits."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        read_fd: int,
        limits: Limits,
        started: float,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.phase = "start"
        self._process = process
        self._fd = read_fd
        self._limits = limits
        self._started = started
        self._on_progress = on_progress
        self._heard = started
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(read_fd, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()
        os.close(self._fd)

    def until_the_end(self) -> Outcome | None:
        """The worker's last word, or the limit it broke; None if it died without a word."""
        while True:
            # asked first: what it said last is in the pipe by then. A child it left behind may hold the pipe open.
            ended = self._process.poll() is not None
            if self._selector.select(0 if ended else _POLL_S):
                outcome, closed = self._listen()
                if outcome is not None:
                    return outcome
                if closed:
                    self._wait_for_exit()
                    return None
            elif ended:
                return None
            broken = self._broken_limit()
            if broken is not None:
                return broken

    def _listen(self) -> tuple[Outcome | None, bool]:
        chunk = os.read(self._fd, 1 << 16)
        self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                message = decode(line)
            except ValueError as error:
                reason = f"the worker sent a line that is no message: {str(error).splitlines()[0]}"
                return Outcome(status=Status.CRASHED, reason=reason), False
            if isinstance(message, Outcome):
                return message, False
            self._heard = time.monotonic()
            self.phase = message.phase
            self._on_progress(message)
        return None, not chunk

    def _broken_limit(self) -> Outcome | None:
        now, limits = time.monotonic(), self._limits
        if now - self._started > limits.wall_s:
            reason = f"still in phase '{self.phase}' after {limits.wall_s:.0f} s: raise --timeout"
            return Outcome(status=Status.TIMEOUT, reason=reason)
        if now - self._heard > limits.stall_s:
            reason = f"no sign of life for {limits.stall_s:.0f} s in phase '{self.phase}'"
            return Outcome(status=Status.TIMEOUT, reason=reason)
        used = tree_rss_bytes(self._process.pid)
        if used > limits.host_bytes:
            reason = (
                f"the process tree held {used / 1e9:.1f} GB of host memory in phase '{self.phase}', "
                f"the limit is {limits.host_bytes / 1e9:.1f} GB: use a smaller --scale, --embedding-dim or --batch-size"
            )
            return Outcome(status=Status.OOM_HOST, reason=reason)
        return None

    def _wait_for_exit(self) -> None:
        """The pipe is closed but the process may still be writing its core or its farewell."""
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return
