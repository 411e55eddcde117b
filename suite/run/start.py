"""Starting workers: forks of a process that has imported their modules (`suite.run.cell.forkserver`)."""

import atexit
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

import psutil

from suite.records.environment import PROJECT, code_digest
from suite.run.kill import MARK, NO_MARK

CODE = "EMBEDDING_BENCH_CODE"
"""Environment variable of a worker: the digest of the code that its records name."""
_ANSWER_S = 300.0
"""Timeout in seconds of the import and of a fork."""
_END_S = 1.0
_ONE_AT_A_TIME = Lock()
_NOT_HANDED_ON = ("PYTEST_CURRENT_TEST", "TMPDIR", MARK)
"""Variables that differ between workers or tests, and that no import reads."""


class Forkserver:
    """Parent's side of the forkserver, which forks one worker at a time. One is kept per environment, for all runs."""

    _kept: "Forkserver | None" = None

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "suite.run.cell.forkserver", str(theirs.fileno())],
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
    def kept(cls) -> "Forkserver":
        """The forkserver for the current environment."""
        environment = worker_environment()
        if cls._kept is None or cls._kept.environment != environment:
            cls.drop()
            cls._kept = cls(environment)
        return cls._kept

    @classmethod
    def drop(cls) -> None:
        """Stop the kept forkserver."""
        if cls._kept is not None:
            cls._kept.close()
            cls._kept = None

    @classmethod
    def kept_s(cls) -> float:
        """CPU seconds of the kept forkserver and of its exited workers.

        Once it is dropped, the kernel counts both with the children of this process.
        """
        if cls._kept is None:
            return 0.0
        with suppress(psutil.Error):
            used = psutil.Process(cls._kept._process.pid).cpu_times()
            return float(used.user + used.system + used.children_user + used.children_system)
        return 0.0

    def fork(self, environment: dict[str, str], fds: list[int]) -> int:
        """Fork a worker. Returns its PID; see `fork_worker`."""
        request = json.dumps({**self.environment, **environment}).encode()
        socket.send_fds(self._socket, [request], fds)
        answer = self._socket.recv(64)
        if not answer:
            raise ConnectionResetError("the process that starts workers has ended")
        return int(answer)

    def close(self) -> None:
        """Stop the forkserver; its workers keep running."""
        self._socket.close()  # makes it exit
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it is still importing
            self._process.kill()
            self._process.wait()


atexit.register(Forkserver.drop)


def fork_worker(environment: dict[str, str], fds: list[int]) -> int:
    """Fork a worker. Returns its PID. If the forkserver has died, of the OOM killer for example, starts a new one.

    Args:
        environment: Variables that differ between workers.
        fds: Standard input, messages, log, a descriptor to keep open, and exit; see `suite.run.cell.forkserver`.

    Raises:
        OSError: no worker could be started.
    """
    with _ONE_AT_A_TIME:
        try:
            try:
                return Forkserver.kept().fork(environment, fds)
            except (BrokenPipeError, ConnectionResetError):
                Forkserver.drop()
                return Forkserver.kept().fork(environment, fds)
        except BaseException:
            Forkserver.drop()  # a late answer would be taken for that to the next request
            raise


@cache
def _code() -> str:
    """Digest of the source files of this process when it starts its first worker."""
    return code_digest(PROJECT)


def worker_environment() -> dict[str, str]:
    """A worker's environment: it imports this copy of the package, and has one native thread per core.

    The working directory, which Python searches first, may contain another copy of the suite: workers search it only if
    this process does, and after this copy. They compare the digest of their own code with that of this process.

    libgomp's threads spin for milliseconds at every barrier by default; if another process needs the core, they wait
    for the scheduler instead, and a step takes a hundred times as long. A short spin costs nothing on an idle machine.
    CUDA numbers devices as NVML does, in PCI order, so that records describe the device that computed.
    """
    here, inherited = str(Path.cwd()), os.environ.get("PYTHONPATH")
    looked_in = [here] if here in sys.path or "" in sys.path else []
    path = os.pathsep.join([str(PROJECT), *looked_in, *([inherited] if inherited else [])])
    threads = str(len(os.sched_getaffinity(0)))
    rest = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
    ours = {
        "PYTHONPATH": path,
        "PYTHONSAFEPATH": "1",
        CODE: _code(),
        "OMP_NUM_THREADS": threads,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return {"GOMP_SPINCOUNT": "2000", **rest, **ours}
