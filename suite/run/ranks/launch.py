"""Starting the ranks of a cell with torchrun's agent, and reporting their result."""

import hashlib
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from suite.records.record import Cell, Status
from suite.records.scales import scale_of
from suite.run.ranks.rank import LOST, run_rank
from suite.run.resources import kernel_kills
from suite.run.worker import CellResult, Reporter

_CONNECT_S = 10
"""Timeout in seconds of torchrun's store. Another program on its port never answers."""


def launch(cell: Cell, reporter: Reporter) -> CellResult:
    """Run a cell on ranks of this machine, and with `--nnodes` on as many ranks of each other machine.

    On one machine ranks rendezvous through a file and use only the loopback interface, so that no port can be taken.
    """
    reporter.phase("start ranks")
    assert cell.ranks is not None
    here = cell.ranks // cell.nodes
    os.environ.update(_environment(cell, here))
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        kills = kernel_kills()
        try:
            _start(cell, here, folder, reporter)
        except ChildFailedError as error:
            return _failed(error.failures, folder, kernel_killed=kernel_kills() > kills)
        except (RendezvousConnectionError, RendezvousTimeoutError) as error:
            reason = f"the ranks did not meet at {cell.rendezvous}: {error}; is it this or another of the machines, "
            return CellResult(status=Status.CRASHED, reason=f"{reason}and is its port free?")
        return min(_results(folder).items())[1]


def _environment(cell: Cell, here: int) -> dict[str, str]:
    """Environment of the ranks: a share of the cores each, and on one machine only the loopback interface."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // here))
    found = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    if cell.rendezvous is None:
        found |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return found


def _start(cell: Cell, here: int, folder: Path, reporter: Reporter) -> None:
    """Start the ranks and wait for their end. If the rendezvous port is taken, try again.

    Raises:
        ChildFailedError: a rank failed; the others are gone.
        RendezvousConnectionError, RendezvousTimeoutError: the machines did not find each other.
    """
    wait_s = scale_of(cell.scale, on_drive=False).stall_s
    last_try = time.monotonic() + 0.75 * wait_s
    alone = cell.rendezvous is None
    for attempt in count():
        config = LaunchConfig(
            min_nodes=cell.nodes,
            max_nodes=cell.nodes,
            nproc_per_node=here,
            run_id=hashlib.sha256(cell.identity().encode()).hexdigest()[:16],
            rdzv_backend="c10d",
            rdzv_endpoint=cell.rendezvous or str(folder / "rendezvous"),
            rdzv_configs={
                "join_timeout": str(int(wait_s)),
                "read_timeout": str(_CONNECT_S),
                "store_type": "file" if alone else "tcp",
            },
            max_restarts=0,
            # nothing has computed in this process, and on a CPU no driver is open: see `suite.run.forkserver`
            start_method="fork" if cell.device == "cpu" else "spawn",
            local_addr="127.0.0.1" if alone else None,
            logs_specs=DefaultLogsSpecs(log_dir=str(folder / f"torchrun-{attempt}")),
        )
        try:
            elastic_launch(config, run_rank)(cell, folder, reporter.address)
        except RendezvousConnectionError:
            if time.monotonic() > last_try:
                raise
            time.sleep(1)
        else:
            return


def _results(folder: Path) -> dict[int, CellResult]:
    """Results that ranks have written, by rank."""
    return {int(path.stem): CellResult.model_validate_json(path.read_text()) for path in folder.glob("[0-9]*.json")}


def _failed(failures: Mapping[int, ProcessFailure], folder: Path, *, kernel_killed: bool) -> CellResult:
    """Result of failed ranks: that of a killed rank, else of one with a reason, else of one that lost the others."""
    for rank, failure in failures.items():
        if failure.exitcode == -signal.SIGKILL and kernel_killed:
            return CellResult(status=Status.OOM_HOST, reason=f"the kernel killed rank {rank} for want of memory")
        if failure.exitcode == -signal.SIGKILL:
            return CellResult(status=Status.CRASHED, reason=f"rank {rank} was killed from outside (SIGKILL)")
    told = sorted(_results(folder).items(), key=lambda item: (LOST in item[1].reason, item[0]))
    if told and LOST not in told[0][1].reason:
        return told[0][1]
    for rank, failure in failures.items():
        if rank not in dict(told):
            how = f"died of {failure.signal_name()}" if failure.exitcode < 0 else f"ended with {failure.exitcode}"
            return CellResult(status=Status.CRASHED, reason=f"rank {rank} {how} and said nothing")
    return told[0][1]
