"""A process that imports what every worker needs, once, and forks a worker whenever it is asked for one.

An import takes as long as a small cell trains. Nothing has computed here and no driver is open, so that a fork is safe:
torch is told to ask NVML for devices. Where an import did open a driver, a worker starts from nothing instead.

Started as `python -m suite.run.cell.forkserver FD`, where FD is a socket. A request is a JSON object, the worker's
environment, with five file descriptors: standard input, messages, log, what is kept open, and exit. The answer is the
worker's number. When a worker has ended, its exit code is written to `exit`. When the socket closes,
this process ends, and workers see to themselves.

A process that has left its session, its parent and its environment is known by whom it falls to: to its worker while
that one lives, then to this process, which kills it before it tells of the worker's end.
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
"""An environment is some kilobytes; a socket takes about so much at once."""
_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd")
"""What drivers open; NVML opens `/dev/nvidiactl` and `/dev/nvidia0`, which a fork leaves alone."""


def main() -> None:
    """Import, then fork until the socket closes."""
    adopt_orphans()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # an import may ask torch for devices; see `_driver_open`
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the logs would drown
    asked = socket.socket(fileno=int(sys.argv[1]))
    wake_fd, wakes_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes_fd)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with suppress(Exception):  # what cannot be imported is said by the worker, in answer to a request
        importlib.import_module("suite.run.cell.experiment")
        from numba.core.registry import cpu_target

        for context in (cpu_target.typing_context, cpu_target.target_context):
            context.refresh()  # what numba reads before its first loop, half a second of every worker
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
            os.read(marked, 1)  # nothing, once it can be killed by session and mark
            os.close(marked)
            exits[pid] = ended
            asked.send(str(pid).encode())


def _reap(exits: dict[int, int]) -> None:
    """Tell how workers ended."""
    for pid in list(exits):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended = exits.pop(pid)
            kill_children(spare=exits)  # those of living workers are not this process's
            with suppress(OSError):  # nobody asks any more
                os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(ended)


def _become_worker(
    environment: dict[str, str], *, anew: bool, stdin: int, messages: int, log: int, kept: int, marks: int
) -> NoReturn:
    """In the new process: look as if it had been started on its own, and work; `anew` starts it from nothing."""
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
    tempfile.tempdir = None  # found anew, in this worker's environment
    if anew:
        os.set_inheritable(messages, True)
        os.execv(sys.executable, [sys.executable, "-u", "-m", "suite.run.cell.worker", str(messages)])
    worker.main(messages)


def _driver_open() -> bool:
    """Whether this process has a device's driver open, which a fork cannot use.

    torch asks NVML for devices here, which opens none. What opens one all the same is seen by its files, or refused by
    torch in every fork. Without a device it refuses too, and nothing is lost by a fork.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        pid = os.fork()
        if pid == 0:
            os._exit(int(torch.cuda._is_in_bad_fork()))
        if os.waitpid(pid, 0)[1]:
            return True
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself is gone
            if str(fd.readlink()).startswith(_DRIVERS):
                return True
    return False


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


if __name__ == "__main__":
    main()
