"""A cell on several ranks: `launch` starts them, and each supports, verifies, builds, ... in step with the others."""

import gc
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException, start_processes
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.records.measured import Memory, Ranks, RankShare, Traffic
from suite.records.record import Cell, Measurement, Status
from suite.records.scales import scale_of
from suite.records.store import write_atomically
from suite.run import resources
from suite.run.cell.experiment import first_failure, measure
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import multiply_in
from suite.run.ranks.data_parallel import RankTrainer, all_gather_object, parts_of, verify_ranks
from suite.run.resources import kernel_kills
from suite.run.worker import CellResult, Reporter, describe, status_of
from systems.contract import Verdict
from systems.sharded.placement import ShardedSystem
from workloads.batch import Split

LOST = "lost the other ranks"
"""Prefix of the reason of a rank that failed because another one did."""
_FOUND_S = 10.0
_GONE = ("Connection closed by peer", "Connection reset", "Broken pipe")
_LATE = ("Timed out waiting", "timed out", "Watchdog caught")
"""Parts of error messages of collectives: another rank has exited (`_GONE`), or did not join in time (`_LATE`)."""


def launch(cell: Cell, reporter: Reporter) -> CellResult:
    """Run a cell on ranks of this machine, with a share of the cores each.

    They meet in a file and use only the loopback interface, so that no port can be taken.
    """
    reporter.phase("start ranks")
    assert cell.ranks is not None
    threads, ranks = str(max(1, len(os.sched_getaffinity(0)) // cell.ranks)), str(cell.ranks)
    os.environ |= {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, "WORLD_SIZE": ranks}
    os.environ |= {"LOCAL_WORLD_SIZE": ranks, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder, kills = Path(name), kernel_kills()
        try:
            # nothing has computed in this process, and on a CPU no driver is open: see `suite.run.forkserver`
            method = "fork" if cell.device == "cpu" else "spawn"
            start_processes(run_rank, (cell, folder, reporter), nprocs=cell.ranks, start_method=method)
        except ProcessException as error:
            return _failure(error, folder, kernel_killed=kernel_kills() > kills)
        return _results(folder)[0]


def _results(folder: Path) -> dict[int, CellResult]:
    """Results that ranks have written, by rank."""
    return {int(path.stem): CellResult.model_validate_json(path.read_text()) for path in folder.glob("[0-9]*.json")}


def _failure(error: ProcessException, folder: Path, *, kernel_killed: bool) -> CellResult:
    """Result of failed ranks: that of a killed rank, else of one with a reason, else of one that lost the others."""
    rank, code = error.error_index, error.exit_code if isinstance(error, ProcessExitedException) else 1
    if code == -signal.SIGKILL and kernel_killed:
        return CellResult(status=Status.OOM_HOST, reason=f"the kernel killed rank {rank} for want of memory")
    if code == -signal.SIGKILL:
        return CellResult(status=Status.CRASHED, reason=f"rank {rank} was killed from outside (SIGKILL)")
    results = _results(folder)
    if rank not in results:
        return CellResult(status=Status.CRASHED, reason=f"rank {rank} gave no result: {error}")
    return min(results.items(), key=lambda item: (LOST in item[1].reason, item[0]))[1]


def run_rank(rank: int, cell: Cell, folder: Path, reporter: Reporter) -> None:
    """Run the cell with the other ranks; this rank writes its result to a file in `folder`. The first one reports."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # a rank that waits in C++ must end too
    warnings.filterwarnings("ignore")  # torchrec and fbgemm print dozens of deprecations; the log would drown
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    try:
        outcome = _run(cell, folder, Reporter(None) if rank else reporter)
        failed = False
    except Exception as error:
        traceback.print_exc()
        outcome, failed = _failed(error, rank), True
    if failed or not rank:
        write_atomically(folder / f"{rank}.json", outcome.model_dump_json())
    if failed:
        sys.stderr.flush()
        if LOST in outcome.reason:
            time.sleep(_FOUND_S)  # the rank that failed first is to be found, and this one killed
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
    device = _join(cell, folder)
    reporter.phase("support")
    setup = CellSetup.of(cell)
    setup = replace(setup, spec=replace(setup.spec, device=device))
    if not issubclass(setup.system_class, ShardedSystem):
        reason = f"{cell.system} is no ShardedSystem: it cannot be spread over ranks"
        return CellResult(status=Status.UNSUPPORTED, reason=reason)
    # all ranks use the first rank's answer: free memory differs between calls
    support = all_gather_object(setup.support())[0]
    if support.verdict is Verdict.YES and not setup.workload.batches(Split.TEST):
        return CellResult(status=Status.INFEASIBLE, reason="the test split has less than one batch: ranks share those")
    if support.verdict is not Verdict.YES:
        return CellResult(status=Status(support.verdict), reason=support.reason)
    reporter.phase("verify")
    verification = verify_ranks(setup, beat=reporter.beat)
    passed = all(all_gather_object(verification.passed))
    if not passed:
        return CellResult(status=Status.WRONG_ANSWER, reason=first_failure(verification), verification=verification)
    multiply_in(tf32=cell.tf32)
    measurement = _train(setup, reporter)
    dist.barrier()
    return CellResult(status=Status.OK, verification=verification, measurement=measurement)


def _train(setup: CellSetup, reporter: Reporter) -> Measurement:
    """Build the system at full size, train, count and evaluate. Returns the measurement over all ranks."""
    cell, device = setup.cell, setup.spec.device
    resources.reset_peaks(device)
    baseline_bytes = resources.rss_bytes()
    reporter.phase("build")
    feed = parts_of(setup.workload, device, on_batch=reporter.beat)
    system, trainer = setup.build(feed, total_steps=cell.steps, beat=reporter.beat, kind=RankTrainer)
    sent = SentBytes()
    measured = measure(
        setup, system, trainer, producers=0, baseline_bytes=baseline_bytes, reporter=reporter, while_counting=sent
    )
    share = share_of(cast(ShardedSystem, system), measured, sent, steps=cell.counted_steps)
    ranks = Ranks(
        backend="nccl" if cell.device == "cuda" else "gloo",
        steps=cell.counted_steps,
        shares=tuple(all_gather_object(share)),
    )
    traffics = [one for one in all_gather_object(measured.traffic) if one is not None]
    return measured.model_copy(
        update={
            "same_kernel_as": None,
            "shares_process": False,
            "busy_between_steps": False,
            "memory": memory_of_all(all_gather_object(measured.memory)),
            "traffic": traffic_of_all(traffics) if traffics else None,
            "ranks": ranks,
        }
    )


def _join(cell: Cell, folder: Path) -> torch.device:
    """Join the group. Returns the device of this rank.

    gloo transfers tensors on the host, NCCL tensors on a GPU. A collective times out before a cell may be silent for
    too long; gloo's own timeout is half an hour.
    """
    device = torch.device("cpu")
    if cell.device == "cuda":
        device = torch.device("cuda", int(os.environ["RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder}/group",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=0.75 * scale_of(cell.scale, on_drive=False).stall_s),
    )
    return device


class SentBytes(TorchDispatchMode):
    """Counts bytes that this rank sends to others inside the context, without the all-reduce of dense layers.

    Attributes:
        ids: Bytes of integer tensors: ids, and lengths of bags.
        pooled: Bytes of floating tensors: pooled vectors, and their gradients.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids = self.pooled = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func.namespace == "c10d":
            self._count(func._schema.name.partition("::")[2], args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        given = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)] if len(args) > 1 else []
        total = sum(tensor.nbytes for tensor in given)
        if name == "alltoall_base_":
            splits: Sequence[int] = args[4] or [1] * ranks
            others = total - total * splits[rank] // max(1, sum(splits))
        elif "reduce_scatter" in name:
            others = total - total // ranks
        elif "allgather" in name:
            others = total * (ranks - 1)
        else:
            return
        if given[0].is_floating_point():
            self.pooled += others
        else:
            self.ids += others


def share_of(system: ShardedSystem, measured: Measurement, sent: SentBytes, *, steps: int) -> RankShare:
    """This rank's traffic in the counted steps, which are the last ones, and its memory."""
    memory = measured.memory
    counted = measured.traffic or Traffic(steps=steps)
    ahead = system.look_ahead  # ids of this many batches were sent before counting
    optimizer = system.spec.optimizer
    widths = {
        name: 4 * table.embedding_dim + optimizer.state_bytes(table.embedding_dim)
        for name, table in system.tables.items()
    }
    return RankShare(
        table_bytes=sum(shard.rows * widths[shard.table] for shard in system.shards),
        device_bytes=sum(memory.anatomy_bytes.get(f"device/{purpose}", 0) for purpose in ("rows", "state")),
        host_peak_rss_bytes=memory.host_peak_rss_bytes,
        device_reserved_bytes=memory.device_reserved_bytes,
        lookups=counted.lookups,
        unique_ids=counted.unique_ids,
        unique_misses=counted.unique_misses,
        ids_bytes=sent.ids * steps // (steps - ahead) if steps > ahead else None,
        pooled_bytes=sent.pooled,
    )


def memory_of_all(each: Sequence[Memory]) -> Memory:
    """Sums over ranks; peaks may have occurred at different times."""
    anatomy: Counter[str] = Counter()
    for memory in each:
        anatomy.update(memory.anatomy_bytes)
    sums = _sums(each, Memory.model_fields.keys() - {"anatomy_bytes"})
    return Memory.model_validate({**sums, "anatomy_bytes": anatomy})


def traffic_of_all(each: Sequence[Traffic]) -> Traffic:
    """Sums over ranks; ranges of a table that is cut are disjoint, so no row is counted twice."""
    names = ("lookups", "unique_ids", "unique_misses", "lookup_misses", "bytes_fetched", "bytes_written_back")
    overflow = {"overflow_batches": max(traffic.overflow_batches for traffic in each)}
    return Traffic.model_validate({"steps": each[0].steps, **overflow, **_sums(each, names)})


def _sums(each: Sequence[Memory | Traffic], names: Iterable[str]) -> dict[str, int | None]:
    """Sums of fields; None where one is not known."""
    found = {name: [getattr(one, name) for one in each] for name in names}
    return {name: None if None in values else sum(values) for name, values in found.items()}
