"""Starting workers: from a process that has imported what they need (`suite.run.cell.forkserver`)."""

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

from suite.records.code import PROJECT, code_digest
from suite.run.kill import MARK, NO_MARK

CODE = "EMBEDDING_BENCH_CODE"
"""Environment variable of a worker: the digest of the code that its records will name."""
_ANSWER_S = 300.0
"""How long the import may take, and a fork."""
_END_S = 1.0
_ONE_AT_A_TIME = Lock()
_NOT_HANDED_ON = ("PYTEST_CURRENT_TEST", "TMPDIR", MARK)
"""Differ from worker to worker, or from test to test, and no import reads them."""


class Forkserver:
    """Forks workers, one at a time. One is kept for all runs of this process in one environment."""

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

    @classmethod
    def kept_s(cls) -> float:
        """CPU seconds of the one that is kept, and of its workers that ended.

        Once it is dropped, the kernel counts both with the children of this process.
        """
        if cls._kept is None:
            return 0.0
        with suppress(psutil.Error):
            used = psutil.Process(cls._kept._process.pid).cpu_times()
            return float(used.user + used.system + used.children_user + used.children_system)
        return 0.0

    def fork(self, environment: dict[str, str], fds: list[int]) -> int:
        """The number of a new worker; see `fork_worker`."""
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


atexit.register(Forkserver.drop)


def fork_worker(environment: dict[str, str], fds: list[int]) -> int:
    """The number of a new worker; where the forkserver has died, as when the kernel wanted memory, of a new one's.

    Args:
        environment: What differs from worker to worker.
        fds: Standard input, messages, log, what is kept open, and exit; see `suite.run.cell.forkserver`.

    Raises:
        OSError: none could be had.
    """
    with _ONE_AT_A_TIME:
        try:
            try:
                return Forkserver.kept().fork(environment, fds)
            except (BrokenPipeError, ConnectionResetError):
                Forkserver.drop()
                return Forkserver.kept().fork(environment, fds)
        except BaseException:
            Forkserver.drop()  # an answer that comes late would be taken for that to the next question
            raise


@cache
def _code() -> str:
    """Of this process, as it lies there when the first worker is started."""
    return code_digest(PROJECT)


def worker_environment() -> dict[str, str]:
    """A worker's environment: this very package imported from anywhere, one native thread per core.

    Where Python would look first, in the working directory, another copy of the suite may lie: workers look there only
    if this process does, and after this copy. They compare the digest of their own code with that of this process.

    libgomp's threads spin for milliseconds at every barrier by default; where a neighbour wants the core they then wait
    for the scheduler instead, and a step takes a hundred times as long. A short spin costs nothing on a quiet machine.
    CUDA numbers devices as NVML does, in PCI order: records describe the device that computed, whatever else there is.
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
