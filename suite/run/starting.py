"""Starting workers: from a process that has imported what they need (`suite.run.cell.zygote`)."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock

from suite.run.ending import GRACE_S, MARK, NO_MARK, kill_marked

_ANSWER_S = 300.0
"""How long the import may take, and a fork."""
_END_S = 1.0
_ONE_AT_A_TIME = Lock()
_NOT_HANDED_ON = ("PYTEST_CURRENT_TEST", "TMPDIR", MARK)
"""Differ from worker to worker, or from test to test, and no import reads them."""


class Process:
    """A worker as its parent sees it; its number is its process group's and its session's too."""

    def __init__(self, pid: int, *, mark: str, stdin: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._mark = mark
        self._stdin = stdin
        self._ended = ended

    def say(self, line: bytes) -> None:
        """Send a line. A worker that died before reading it is found out by its exit."""
        with suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._stdin, line) :]

    def wait(self, timeout: float = 0.0) -> int | None:
        """Its exit code, negative for a signal that it died of; None where it goes on for so many seconds."""
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            said = os.read(self._ended, 64).split()
            self.returncode = int(said[0]) if said else -9  # killed with the process that would have told
            Zygote.ended_s += float(said[1]) if said else 0.0
        return self.returncode

    def close(self) -> None:
        """Kill it, its session and whatever carries its mark, and reap it; once. One that is gone does no harm."""
        with suppress(ProcessLookupError):  # the whole group may have ended
            os.killpg(self.pid, signal.SIGKILL)
        kill_marked(self._mark, spare=os.getpid())
        self.wait(GRACE_S)  # it may be stuck in a driver's call: the other cells go on
        os.close(self._stdin)
        os.close(self._ended)


class Zygote:
    """Forks workers, one at a time. One is kept for all runs of this process in one environment.

    Attributes:
        ended_s: CPU seconds of all workers that have ended. They are no children of this process.
    """

    ended_s = 0.0
    _kept: "Zygote | None" = None

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "suite.run.cell.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
                env={**environment, MARK: NO_MARK},
            )
        mine.settimeout(_ANSWER_S)
        self._socket = mine

    @classmethod
    def kept(cls) -> "Zygote":
        """The one for the environment as it is now."""
        environment = worker_environment()
        if cls._kept is None or cls._kept.environment != environment:
            cls.drop()
            cls._kept = cls(environment)
        return cls._kept

    @classmethod
    def drop(cls) -> None:
        """End the one that is kept."""
        if cls._kept is not None:
            cls._kept.close()
            cls._kept = None

    def fork(self, environment: dict[str, str], fds: list[int]) -> int:
        """The number of a new worker.

        Raises:
            OSError: none could be had.
        """
        request = json.dumps({**self.environment, **environment}).encode()
        socket.send_fds(self._socket, [request], fds)
        answer = self._socket.recv(64)
        if not answer:
            raise ConnectionResetError("the process that starts workers has ended")
        return int(answer)

    def close(self) -> None:
        """End it; its workers go on."""
        self._socket.close()  # on which it ends
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it still imports
            self._process.kill()
            self._process.wait()


atexit.register(Zygote.drop)


def start(log: Path, *, folder: Path, keep: int) -> tuple[Process, int]:
    """A worker that waits for requests, and the file descriptor that its messages arrive at.

    Its temporary files lie in `folder`, which stays for as long as it has the file descriptor `keep` open.

    Raises:
        OSError: no worker or log could be had.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as mine, ExitStack() as theirs:
        pipes = [os.pipe() for _ in range(3)]
        (stdin, say), (listen, messages), (ended, ends) = pipes
        for fd in (say, listen, ended):
            mine.callback(os.close, fd)
        for fd in (stdin, messages, ends):
            theirs.callback(os.close, fd)
        sink = theirs.enter_context(log.open("wb"))
        mark = uuid.uuid4().hex
        pid = _fork({MARK: mark, "TMPDIR": str(folder)}, [stdin, messages, sink.fileno(), keep, ends])
        mine.pop_all()
        return Process(pid, mark=mark, stdin=say, ended=ended), listen


def _fork(asked: dict[str, str], fds: list[int]) -> int:
    """Have a worker forked; where the zygote has died, as when the kernel wanted memory, by a new one."""
    with _ONE_AT_A_TIME:
        try:
            try:
                return Zygote.kept().fork(asked, fds)
            except (BrokenPipeError, ConnectionResetError):
                Zygote.drop()
                return Zygote.kept().fork(asked, fds)
        except BaseException:
            Zygote.drop()  # an answer that comes late would be taken for that to the next question
            raise


def worker_environment() -> dict[str, str]:
    """A worker's environment: this package importable from anywhere, one native thread per core.

    libgomp's threads spin for milliseconds at every barrier by default; where a neighbour wants the core they then wait
    for the scheduler instead, and a step takes a hundred times as long. A short spin costs nothing on a quiet machine.
    """
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, str(Path.cwd()), *([inherited] if inherited else [])])
    threads = str(len(os.sched_getaffinity(0)))
    rest = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
    return {"GOMP_SPINCOUNT": "2000", **rest, "PYTHONPATH": path, "OMP_NUM_THREADS": threads}
