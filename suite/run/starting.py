"""Starting a worker, and handing it what it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

from suite.run.killing import MARK
from suite.run.messages import encode


def start(log: Path, *, mark: str, folder: Path, keep: int) -> tuple[subprocess.Popen[bytes], int]:
    """A worker that waits for requests, and the file descriptor that its messages arrive at.

    Its temporary files lie in `folder`, which stays for as long as it has the file descriptor `keep` open.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    read_fd, write_fd = os.pipe()
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "suite.run.cell.worker", str(write_fd)],
                bufsize=0,  # else closing its standard input would try again to send a cell that nobody read
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd, keep),
                start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
                env={**worker_environment(), MARK: mark, "TMPDIR": str(folder)},
            )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    return process, read_fd


def say(process: subprocess.Popen[bytes], request: BaseModel) -> None:
    """Send a request. A worker that died before reading it is found out by its closed pipe."""
    assert process.stdin is not None
    try:
        process.stdin.write(encode(request))
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
