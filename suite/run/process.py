"""One cell in a fresh process of its own: started, listened to, timed out, and killed with everything it started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from suite.records.record import Cell
from suite.records.status import Status
from suite.run.messages import Outcome, Progress, decode

_POLL_S = 0.25
_GRACE_S = 10.0
"""How long a worker may take to end after its last word, or to be reaped after a kill."""
_KILL_COUNTS = tuple(
    map(Path, ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"))
)
"""Where the kernel counts its kills for want of memory: cgroup v2, cgroup v1, the whole machine."""
MARK = "EMBEDDING_BENCH_WORKER"
"""Environment variable with a value per worker. All that a worker starts inherits it, and is found by it even after it
left the session and lost its parent."""


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
    cell: Cell, *, limits: Limits, log: Path, on_progress: Callable[[Progress], None] = lambda _: None
) -> Ended:
    """Run a cell in a new process and session; its output goes to `log`.

    Raises:
        Cancelled: Ctrl-C arrived; the process tree is gone by then.
    """
    started = time.monotonic()
    kills_before = _kernel_kills()
    mark = uuid.uuid4().hex
    process, read_fd = _started(log, mark)
    watch = _Watch(process, read_fd=read_fd, limits=limits, started=started, on_progress=on_progress)
    try:
        _say(process, cell)
        outcome = watch.until_the_end()
    except KeyboardInterrupt:
        outcome = Outcome(status=Status.INTERRUPTED, reason="stopped by Ctrl-C")
        raise Cancelled(Ended(outcome, watch.phase, time.monotonic() - started)) from None
    finally:
        kill_tree(process, mark=mark)
        watch.close()
    if outcome is None:
        outcome = _post_mortem(process.returncode, log=log, kernel_killed=_kernel_kills() > kills_before)
    return Ended(outcome, watch.phase, time.monotonic() - started)


def _started(log: Path, mark: str) -> tuple[subprocess.Popen[bytes], int]:
    """A worker that waits for its cell, and the file descriptor that its messages arrive at."""
    log.parent.mkdir(parents=True, exist_ok=True)
    read_fd, write_fd = os.pipe()
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "suite.run.worker", str(write_fd)],
                bufsize=0,  # else closing its standard input would try again to send a cell that nobody read
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
                start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
                env={**worker_environment(), MARK: mark},
            )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    return process, read_fd


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
        used = _tree_rss_bytes(self._process.pid)
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
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return


def kill_tree(process: subprocess.Popen[Any], *, mark: str) -> None:
    """Kill a process, its session and whatever carries its mark, and reap it; one that is gone already does no harm."""
    with suppress(ProcessLookupError):  # the whole group may have ended
        os.killpg(process.pid, signal.SIGKILL)
    kill_marked(mark, spare=os.getpid())
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):  # stuck in a driver's call: the other cells go on
        process.wait(_GRACE_S)


def kill_marked(mark: str, *, spare: int) -> None:
    """Kill every process that inherited this mark but the process `spare`, until there is none that can be killed."""
    seen: set[int] = {spare}
    while found := [process for process in psutil.process_iter() if process.pid not in seen and _has(process, mark)]:
        for process in found:
            seen.add(process.pid)
            with suppress(psutil.Error):
                process.kill()


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False  # gone, or another user's


def _say(process: subprocess.Popen[bytes], cell: Cell) -> None:
    """Hand over the cell. A worker that died before reading it is found out by its closed pipe."""
    assert process.stdin is not None
    try:
        process.stdin.write(cell.model_dump_json().encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return


def worker_environment() -> dict[str, str]:
    """The child's environment: this package importable from anywhere, one native thread per core.

    libgomp's threads spin for milliseconds at every barrier by default; where a neighbour wants the core they then wait
    for the scheduler instead, and a step takes a hundred times as long. A short spin costs nothing on a quiet machine.
    """
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, str(Path.cwd()), *([inherited] if inherited else [])])
    threads = str(len(os.sched_getaffinity(0)))
    return {"GOMP_SPINCOUNT": "2000", **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads}


def _post_mortem(returncode: int | None, *, log: Path, kernel_killed: bool) -> Outcome:
    """What became of a worker that ended without its last word."""
    last = _last_line(log)
    said = f"; its last line: {last}" if last else ""
    if returncode == -signal.SIGKILL and kernel_killed:
        return Outcome(status=Status.OOM_HOST, reason="the kernel killed the worker for want of memory")
    if returncode == -signal.SIGKILL:
        reason = "the worker was killed from outside (SIGKILL): by a person, a job scheduler or for want of memory"
        return Outcome(status=Status.CRASHED, reason=reason + said)
    if returncode is not None and returncode < 0:
        return Outcome(status=Status.CRASHED, reason=f"the worker died of {_signal_name(-returncode)}{said}")
    return Outcome(status=Status.CRASHED, reason=f"the worker ended with exit code {returncode} and no result{said}")


def _last_line(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a realtime one


def _kernel_kills() -> int:
    """How often the kernel has killed for want of memory, in this cgroup where there is one."""
    for path in _KILL_COUNTS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _tree_rss_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants, shared pages counted once per process."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for member in members:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
