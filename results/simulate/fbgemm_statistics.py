"""fbgemm's own statistics beside the simulator's, on the same stream: run as a script, on a CUDA device.

    python results/simulate/fbgemm_statistics.py [--workload criteo_kaggle] [--scale full] [--cache-ratio 0.01]
        [--out results/simulate/fbgemm_statistics.json]

Rows are 4 wide whatever the scale: which rows a cache holds does not depend on their width, and host memory does.
A difference of 0 everywhere says that the simulator's misses are fbgemm's.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pandas as pd
import torch

from suite.records.environment import capture
from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.records.store import write_json
from suite.run.cell.feed import open_workload
from suite.run.cell.setup import CellSetup
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from suite.simulate.models.fbgemm import FbgemmCacheModel, cache_miss_counter, uvm_cache_stats
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.trace import WorkloadTrace
from systems.fbgemm.uvm import FbgemmUVMCaching
from workloads.batch import Split

DIM = 4
POLICIES = ("lru", "lfu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print, and leave a record where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="criteo_kaggle")
    parser.add_argument("--scale", default="full", choices=list(SCALES))
    parser.add_argument("--cache-ratio", type=float, default=0.01)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--out", type=Path, help="record of the figures, as JSON")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("fbgemm has no UVM cache on a CPU: run this where torch sees a CUDA device")
    found = {policy: compared(_cell(options, policy), policy, options.batches) for policy in POLICIES}
    lines = [
        [policy, name, f"{real:,}", f"{simulated:,}", f"{simulated - real:+,}"]
        for policy, pairs in found.items()
        for name, (real, simulated) in pairs.items()
    ]
    titles = ["policy", "statistic", "fbgemm", "simulated", "difference"]
    sys.stdout.write(pd.DataFrame(lines, columns=titles).to_string(index=False) + "\n")
    record = {
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "workload": options.workload,
        "scale": options.scale,
        "cache_ratio": options.cache_ratio,
        "batches": options.batches,
        "statistics": {
            policy: {name: {"fbgemm": real, "simulated": simulated} for name, (real, simulated) in pairs.items()}
            for policy, pairs in found.items()
        },
    }
    if options.out is not None:
        write_json(options.out, record)


def compared(cell: Cell, policy: str, batches: int) -> dict[str, tuple[int, int]]:
    """Statistics by name, fbgemm's and the simulator's, from an empty cache on."""
    stats, misses = trained(cell, batches)
    trace = WorkloadTrace(open_workload(cell))
    slots = max(1, int(trace.rows * cast(float, cell.cache_ratio)))
    setting = Setting(trace=trace, span=Span(counted_from=0, stop=batches), slots=slots)
    tally = replay(FbgemmCacheModel(setting, {"policy": policy, "prefetch": "off"}))
    if policy == "lru":
        return {name: (real, value) for (name, value), real in zip(uvm_cache_stats(tally).items(), stats, strict=True)}
    names = ("lookups_with_misses", "unique_misses")
    return dict(zip(names, zip(misses, cache_miss_counter(tally), strict=True), strict=True))


def trained(cell: Cell, batches: int) -> tuple[list[int], list[int]]:
    """Counters of fbgemm over so many batches: its cache statistics, and its miss counter."""
    setup = CellSetup.of(cell)
    spec, workload = setup.spec, setup.workload
    system = FbgemmUVMCaching(spec)
    system.count_traffic(True)
    system.reset_counters()
    for index in range(batches):
        features = workload.batch(index, Split.TRAIN).features.to(spec.device)
        system(features).values().sum().backward()
    torch.cuda.synchronize()
    (tbe,) = system.tbes
    return tbe.uvm_cache_stats.tolist(), tbe.cache_miss_counter.tolist()


def _cell(options: argparse.Namespace, policy: str) -> Cell:
    planned = Options(
        systems=f"fbgemm_uvm_caching[policy={policy},memory=host_mapped]",
        workloads=options.workload,
        scale=options.scale,
        embedding_dim=DIM,
        cache_ratio=None if options.cache_ratio is None else str(options.cache_ratio),
    )
    return plan_cells(planned, device="cuda", host_bytes=1 << 40)[0][0]


if __name__ == "__main__":
    main()
