"""The forkserver: it imports the workers' modules once, and forks a worker per request.

Imports take as long as the training of a small cell. This process computes nothing and opens no driver, so that a fork
is safe: torch is told to ask NVML for devices. If an import did open a driver, workers exec a new interpreter instead.

Started as `python -m suite.run.cell.forkserver FD`, where FD is a socket. A request is a JSON object, the worker's
environment, with five file descriptors: standard input, messages, log, a descriptor to keep open, and exit. The answer
is the worker's PID. When a worker has ended, its exit code is written to `exit`. When the socket closes,
this process ends; workers keep running.

A process that left its session, its parent and its environment is reparented: to its worker while that one lives, then
to the forkserver, which kills it before it reports the worker's end.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from suite.run.cell import worker
from suite.run.kill import MARK, adopt_orphans, kill_children, set_mark

_REQUEST_BYTES = 1 << 18
"""Maximum bytes of a request: an environment takes some kilobytes, a socket accepts about this much at once."""
_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd")
"""Device files that drivers open; those of NVML, `/dev/nvidiactl` and `/dev/nvidia0`, are safe across a fork."""


def main() -> None:
    """Import, then fork until the socket closes."""
    adopt_orphans()
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
            request, fds, _, _ = socket.recv_fds(asked, _REQUEST_BYTES, 5)
            if not request:
                os._exit(0)
            stdin, messages, log, kept, ended = fds
            marked, marks = os.pipe()
            pid = os.fork()
            if pid == 0:
                _close(asked.detach(), wake_fd, wakes_fd, ended, marked, *exits.values())
                _become_worker(
                    json.loads(request), anew=anew, stdin=stdin, messages=messages, log=log, kept=kept, marks=marks
                )
            _close(stdin, messages, log, kept, marks)
            os.read(marked, 1)  # returns at EOF, when the worker has its session and mark, by which it can be killed
            os.close(marked)
            exits[pid] = ended
            asked.send(str(pid).encode())


def _reap(exits: dict[int, int]) -> None:
    """Report the exit codes of ended workers."""
    for pid in list(exits):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended = exits.pop(pid)
            kill_children(spare=exits)  # children of living workers are not adopted yet
            with suppress(OSError):  # the parent has closed the pipe
                os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(ended)


def _become_worker(
    environment: dict[str, str], *, anew: bool, stdin: int, messages: int, log: int, kept: int, marks: int
) -> NoReturn:
    """In the forked process: set up session, files and environment, and run the worker; `anew` execs an interpreter."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # Ctrl-C in the terminal is the parent's to handle
    adopt_orphans()
    os.dup2(stdin, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _close(stdin, log)
    os.set_inheritable(kept, True)
    set_mark(environment[MARK])
    os.close(marks)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # recomputed from this worker's environment
    if anew:
        os.set_inheritable(messages, True)
        os.execv(sys.executable, [sys.executable, "-u", "-m", "suite.run.cell.worker", str(messages)])
    worker.main(messages)


def _driver_open() -> bool:
    """Whether this process has a device's driver open, which a forked process cannot use.

    torch asks NVML for devices here, which opens none. An import that opens one is detected by its open files, or by
    torch's own check in a fork. Without a device that check fails too, and forking is safe.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        pid = os.fork()
        if pid == 0:
            os._exit(int(torch.cuda._is_in_bad_fork()))
        if os.waitpid(pid, 0)[1]:
            return True
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing is closed
            if str(fd.readlink()).startswith(_DRIVERS):
                return True
    return False


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


if __name__ == "__main__":
    main()
