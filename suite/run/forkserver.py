"""The forkserver: a process that imports the workers' modules once, and forks a worker per request.

Imports take as long as the training of a small cell. The forkserver computes nothing and opens no driver, so that a
fork is safe: torch is told to ask NVML for devices. If an import did open a driver, workers exec a new interpreter.

Started as `python -m suite.run.forkserver FD`, where FD is a socket. A request is the path of the worker's temporary
directory, with four file descriptors: requests, answers, log and exit. The answer is the worker's PID. When a worker
has ended, its exit code is sent to `exit`. When the socket closes, the forkserver ends; workers keep running.

A process that left its session and its parent is reparented: to its worker while that one lives, then to the
forkserver, which kills it before it reports the worker's end.
"""

import atexit
import ctypes
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import NoReturn

from suite.records.environment import PROJECT, WORKERS_OPENMP, code_digest
from suite.run import worker

_ANSWER_S = 300.0
"""Timeout in seconds of the import and of a fork."""
_END_S = 1.0
_ONE_AT_A_TIME = Lock()
_NOT_HANDED_ON = ("PYTEST_CURRENT_TEST", "TMPDIR")
"""Variables that differ between workers or tests, and that no import reads."""
_PATH_BYTES = 4096
"""Maximum bytes of a path, and so of a request."""
_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd")
"""Device files that drivers open; those of NVML, `/dev/nvidiactl` and `/dev/nvidia0`, are safe across a fork."""
_SET_CHILD_SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of Linux's prctl.h."""


class Forkserver:
    """Parent's side of the forkserver. One is kept, for all runs in the same environment."""

    kept: "Forkserver | None" = None

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "suite.run.forkserver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
                env=environment,
            )
        mine.settimeout(_ANSWER_S)
        self.socket = mine

    @classmethod
    def drop(cls) -> None:
        """Stop the kept forkserver; its workers keep running."""
        if cls.kept is not None:
            cls.kept.socket.close()  # makes it exit
            try:
                cls.kept.process.wait(_END_S)
            except subprocess.TimeoutExpired:  # it is still importing
                cls.kept.process.kill()
                cls.kept.process.wait()
            cls.kept = None


atexit.register(Forkserver.drop)


def fork_worker(folder: Path, fds: list[int]) -> int:
    """Fork a worker. Returns its PID. If the forkserver has died, of the OOM killer for example, starts a new one.

    Args:
        folder: Its directory of temporary files.
        fds: Requests, answers, log and exit; see this module.

    Raises:
        OSError: no worker could be started.
    """
    with _ONE_AT_A_TIME:
        for last_try in (False, True):
            environment = worker_environment()
            if Forkserver.kept is None or Forkserver.kept.environment != environment:
                Forkserver.drop()
                Forkserver.kept = Forkserver(environment)
            try:
                socket.send_fds(Forkserver.kept.socket, [os.fsencode(folder)], fds)
                if answer := Forkserver.kept.socket.recv(64):
                    return int(answer)
            except BaseException as error:
                Forkserver.drop()  # a late answer would be taken for that to the next request
                if last_try or not isinstance(error, BrokenPipeError | ConnectionResetError):
                    raise
            Forkserver.drop()
    raise ConnectionResetError("the process that starts workers has ended")


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
        worker.CODE: _code(),
        "OMP_NUM_THREADS": threads,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return {**WORKERS_OPENMP, **rest, **ours}


def main() -> None:
    """Import, then fork until the socket closes."""
    adopt_orphans()
    environment = dict(os.environ)
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # an import may ask torch for devices; see `_driver_open`
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the logs would drown
    asked = socket.socket(fileno=int(sys.argv[1]))
    wake_fd, wakes_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes_fd)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with suppress(Exception):  # the worker reports failed imports, in answer to a request
        importlib.import_module("suite.run.cell.experiment")
        from numba.core.registry import cpu_target

        for context in (cpu_target.typing_context, cpu_target.target_context):
            context.refresh()  # numba does this before its first loop; it takes each worker half a second
    anew = _driver_open()
    exits: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([asked.fileno(), wake_fd], [], [])
        if wake_fd in ready:
            os.read(wake_fd, 4096)
            _reap(exits)
        if asked.fileno() in ready:
            folder, fds, _, _ = socket.recv_fds(asked, _PATH_BYTES, 4)
            if not folder:
                os._exit(0)
            stdin, messages, log, ended = fds
            alone, has_session = os.pipe()
            pid = os.fork()
            if pid == 0:
                _close(asked.detach(), wake_fd, wakes_fd, ended, alone, *exits.values())
                os.setsid()  # Ctrl-C in the terminal is the parent's to handle
                adopt_orphans()
                os.close(has_session)
                environment["TMPDIR"] = os.fsdecode(folder)
                _become_worker(environment, anew=anew, stdin=stdin, messages=messages, log=log)
            _close(stdin, messages, log, has_session)
            os.read(alone, 1)  # returns at EOF, when all that the worker starts can be found from it
            os.close(alone)
            exits[pid] = ended
            asked.send(str(pid).encode())


def _reap(exits: dict[int, int]) -> None:
    """Report the exit codes of ended workers."""
    for pid in list(exits):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended = Connection(exits.pop(pid), readable=False)
            worker.kill_children(spare=exits)  # children of living workers are not adopted yet
            with suppress(OSError), ended:  # the parent has closed the pipe
                ended.send(os.waitstatus_to_exitcode(status))


def _become_worker(environment: dict[str, str], *, anew: bool, stdin: int, messages: int, log: int) -> NoReturn:
    """In the forked process: set up files and environment, and run the worker; `anew` execs an interpreter."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(stdin, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _close(stdin, log)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # recomputed from this worker's environment
    if anew:
        os.set_inheritable(messages, True)
        command = f"from suite.run.worker import main; main({messages})"
        os.execv(sys.executable, [sys.executable, "-u", "-c", command])
    worker.main(messages)


def _driver_open() -> bool:
    """Whether this process has a device's driver open, which a forked process cannot use."""
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing is closed
            if str(fd.readlink()).startswith(_DRIVERS):
                return True
    return False


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def adopt_orphans() -> None:
    """Make this process the child subreaper: orphaned descendants are reparented to it.

    The setting persists across exec, forked processes do not inherit it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt what its children leave behind")


if __name__ == "__main__":
    main()
