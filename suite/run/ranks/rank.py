"""One rank of a cell: support, verify, build, train, count, evaluate, in step with the other ranks.

torchrun's agent calls `run_rank` in a process of its own.
"""

import gc
import os
import signal
import sys
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from suite.records.measured import Ranks
from suite.records.record import Cell, Measurement, Status
from suite.records.store import write_atomically
from suite.run import memory_probes
from suite.run.cell.experiment import first_failure, measure
from suite.run.cell.failures import describe, status_of
from suite.run.cell.feed import FeedPlan
from suite.run.cell.reporter import Reporter
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import multiply_in
from suite.run.messages import CellResult
from suite.run.ranks import account, group
from suite.run.ranks.training import RankTrainer, parts_of
from suite.run.ranks.verify import verify_ranks
from systems.contract import Verdict
from systems.sharded.system import ShardedSystem
from workloads.batch import Split

LOST = "lost the other ranks"
"""Prefix of the reason of a rank that failed because another one did."""
_FOUND_S = 10.0
_GONE = ("Connection closed by peer", "Connection reset", "Broken pipe")
_LATE = ("Timed out waiting", "timed out", "Watchdog caught")
"""Parts of error messages of collectives: another rank has exited (`_GONE`), or did not join in time (`_LATE`)."""


def run_rank(cell: Cell, folder: Path, reports: Path) -> None:
    """Run the cell with the other ranks; this rank writes its result to a file in `folder`.

    The first rank of a machine writes its progress to `reports`.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # replaces the agent's handlers: a rank that waits in C++ must end too
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the log would drown
    rank, leads = int(os.environ["RANK"]), os.environ["LOCAL_RANK"] == "0"
    with (reports if leads else Path(os.devnull)).open("wb") as pipe:
        reporter = Reporter(pipe)
        try:
            outcome = _run(cell, folder, reporter)
            failed = False
        except Exception as error:
            traceback.print_exc()
            outcome, failed = _failed(error, rank), True
        if leads or failed:
            write_atomically(folder / f"{rank}.json", outcome.model_dump_json())
    if failed:
        sys.stderr.flush()
        if LOST in outcome.reason:
            time.sleep(_FOUND_S)  # the agent finds the rank that failed first, and kills this one
        os._exit(1)  # exit handlers of libraries must not wait for exited ranks
    gc.collect()  # frees the model: after its process group that can hang (pytorch 75097)
    dist.destroy_process_group()


def _failed(error: Exception, rank: int) -> CellResult:
    lost, late = (any(words in str(error) for words in said) for said in (_GONE, _LATE))
    why = f"{LOST}: " if lost else "another rank did not come to a collective in time: " if late else ""
    status = Status.TIMEOUT if late else status_of(error)
    return CellResult(status=status, reason=f"rank {rank}: {why}{describe(error)}")


def _run(cell: Cell, folder: Path, reporter: Reporter) -> CellResult:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    reporter.phase("meet")
    device = group.join(cell, folder)
    reporter.phase("support")
    setup = CellSetup.of(cell)
    setup = replace(setup, spec=replace(setup.spec, device=device))
    if not issubclass(setup.system_class, ShardedSystem):
        reason = f"{cell.system} is no ShardedSystem: it cannot be spread over ranks"
        return CellResult(status=Status.UNSUPPORTED, reason=reason)
    # all ranks use the first rank's answer: free memory differs between calls
    support = group.of_all(setup.support())[0]
    if support.verdict is Verdict.YES and not setup.workload.batches(Split.TEST):
        return CellResult(status=Status.INFEASIBLE, reason="the test split has less than one batch: ranks share those")
    if support.verdict is not Verdict.YES:
        return CellResult(status=Status(support.verdict), reason=support.reason)
    reporter.phase("verify")
    verification = verify_ranks(setup, beat=reporter.beat)
    passed = all(group.of_all(verification.passed))
    if not passed:
        return CellResult(status=Status.WRONG_ANSWER, reason=first_failure(verification), verification=verification)
    multiply_in(tf32=cell.tf32)
    measurement = _train(setup, reporter)
    dist.barrier()
    return CellResult(status=Status.OK, verification=verification, measurement=measurement)


def _train(setup: CellSetup, reporter: Reporter) -> Measurement:
    """Build the system at full size, train, count and evaluate. Returns the measurement over all ranks."""
    cell, device = setup.cell, setup.spec.device
    memory_probes.reset_peaks(device)
    baseline_bytes = memory_probes.rss_bytes()
    plan = FeedPlan(producers=0, threads=torch.get_num_threads())
    reporter.phase("build")
    feed = parts_of(setup.workload, device)
    system, trainer = setup.build(feed, total_steps=cell.steps, beat=reporter.beat, kind=RankTrainer)
    sent = account.SentBytes()
    measured, trained_s = measure(
        setup, system, trainer, plan=plan, baseline_bytes=baseline_bytes, reporter=reporter, while_counting=sent
    )
    share = account.share_of(cast(ShardedSystem, system), measured, sent, steps=cell.counted_steps)
    ranks = Ranks(
        backend="nccl" if cell.device == "cuda" else "gloo",
        steps=cell.counted_steps,
        steps_per_s=cell.train_steps / trained_s,
        shares=tuple(group.of_all(share)),
    )
    traffics = [one for one in group.of_all(measured.traffic) if one is not None]
    return measured.model_copy(
        update={
            "same_kernel_as": None,
            "shares_process": False,
            "busy_between_steps": False,
            "memory": account.memory_of_all(group.of_all(measured.memory)),
            "traffic": account.traffic_of_all(traffics) if traffics else None,
            "ranks": ranks,
        }
    )
