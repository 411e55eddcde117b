"""Whole training steps of several systems in one process, in turns: throughput relative to the first of them.

    python results/cache/training_turns.py --out results/cache/training.json

Cells of a published comparison are processes of their own, whose memory lies where the machine puts it; on a shared
machine that alone moves equal cells apart. Here all systems train the same DLRM on the same batches, a few steps at a
time, forth and back, and are built anew several times. Steps are timed as the suite times them, by its own trainer:
batches are made before the clock. With SGD on a CPU the losses of all systems must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suite.records.environment import capture
from suite.records.options import parse_workloads
from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.records.store import write_atomically
from suite.run.cell.asked import Asked
from suite.run.cell.stream import open_workload
from suite.run.cell.training import Trainer, in_process, load_initial_rows
from suite.run.plan import Options, plan_cells
from systems.contract import Verdict
from systems.registry import parse_systems
from workloads.batch import Workload
from workloads.dlrm import build_dlrm

DEFAULT_SYSTEMS = "full_gpu,freq_cache,freq_cache[policy=lfu]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and leave a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default=DEFAULT_SYSTEMS, help="the first is what the others are compared with")
    parser.add_argument("--workloads", default="criteo_kaggle,avazu,criteo_1tb")
    parser.add_argument("--scale", default="small", choices=list(SCALES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "rowwise_adagrad"])
    parser.add_argument("--cache-ratio", type=float)
    parser.add_argument("--builds", type=int, default=3, help="times that all systems are built")
    parser.add_argument("--turns", type=int, default=16, help="of every system after each build; 2 more warm up")
    parser.add_argument("--steps", type=int, default=16, help="of every turn")
    parser.add_argument("--out", type=Path, required=True)
    setting = parser.parse_args(arguments)
    if min(setting.builds, setting.turns, setting.steps) < 1:
        parser.error("--builds, --turns and --steps: give at least 1")
    systems = tuple(parse_systems(setting.systems))
    asked = Options(
        systems=systems,
        workloads=parse_workloads(setting.workloads),
        device=setting.device,
        scale=setting.scale,
        optimizer=setting.optimizer,
        cache_ratio=setting.cache_ratio,
    )
    cells = plan_cells(asked, datasets=None, host_bytes=1 << 40)[0]
    results = {}
    for name in asked.workloads:
        mine = {cell.system: cell for cell in cells if cell.workload == name}
        results[name] = in_turns([mine[str(system)] for system in systems], setting)
        for system, found in results[name].items():
            sys.stdout.write(
                f"{name:16} {system:28} {found['ms_per_step']:8.2f} ms a step, {found['throughput_relative']:.3f} "
                f"[{found['quartiles'][0]:.3f}, {found['quartiles'][1]:.3f}] of {systems[0]}\n"
            )
    first = cells[0]
    record = {
        "figure": "training",
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "scale": first.scale,
        "device": first.device,
        "optimizer": first.optimizer,
        "cache_ratio": first.cache_ratio,
        "batch_size": first.batch_size,
        "builds": setting.builds,
        "turns": setting.turns,
        "steps": setting.steps,
        "results": results,
    }
    write_atomically(setting.out, json.dumps(record, indent=1) + "\n")


def in_turns(cells: Sequence[Cell], setting: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Milliseconds of a step by system, and throughput relative to the first one's turn of the same number."""
    workload = open_workload(cells[0])
    times: dict[str, list[list[float]]] = {cell.system: [] for cell in cells}
    for _ in range(setting.builds):
        trainers = {cell.system: trainer_of(cell, workload, setting.steps * (setting.turns + 2)) for cell in cells}
        for found in times.values():
            found.append([])
        for turn in range(setting.turns + 2):
            losses = {}
            for name in list(trainers)[:: 1 if turn % 2 else -1]:
                run = trainers[name].run(setting.steps)
                losses[name] = run.loss
                if turn >= 2:
                    times[name][-1].append(1e3 * run.duration_s / run.steps)
            if setting.optimizer == "sgd" and setting.device == "cpu" and len(set(losses.values())) > 1:
                raise SystemExit(f"after equal batches the losses differ: {losses}")
        del trainers
        gc.collect()
    base = times[cells[0].system]
    results = {}
    for name, found in times.items():
        by_build = [
            [full / own for full, own in zip(one, other, strict=True)] for one, other in zip(base, found, strict=True)
        ]
        ratios = [ratio for build in by_build for ratio in build]
        results[name] = {
            "ms_per_step": statistics.median(ms for build in found for ms in build),
            "throughput_relative": statistics.median(ratios),
            "quartiles": [float(np.quantile(ratios, share)) for share in (0.25, 0.75)],
            "by_build": [statistics.median(build) for build in by_build],
        }
    return results


def trainer_of(cell: Cell, workload: Workload, steps: int) -> Trainer:
    """A system in a DLRM, as a cell of the suite has it."""
    device = torch.device(cell.device)
    asked = Asked.of(cell)
    spec = asked.spec
    support = asked.support()
    if support.verdict is not Verdict.YES:
        raise SystemExit(f"--systems: {cell.system} cannot train on {cell.workload}: {support.reason}")
    system = asked.system_class(spec)
    load_initial_rows(system, seed=cell.seed)
    model = build_dlrm(
        system,
        dense_columns=workload.dense_columns,
        embedding_dim=cell.embedding_dim,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        seed=cell.seed,
        device=device,
    )
    return Trainer(model, system, feed=in_process(workload, device), total_steps=steps)


if __name__ == "__main__":
    main()
