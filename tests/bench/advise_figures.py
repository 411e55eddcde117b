"""How far predicted steps are from measured ones.

    python tests/bench/advise_figures.py
    python tests/bench/advise_figures.py --workloads avazu --systems full_gpu,freq_cache --rounds 3 --out figures/
    python tests/bench/advise_figures.py --together

Calibrates on streams of its own, predicts every cell, then measures the same cells as `run_bench.py` does, in processes
of their own. Nothing is fitted to a measured cell. The error of a cell is that of the median over its rounds. What
else runs on the machine meanwhile is part of the error: the one-minute load is printed with it.

With `--together` the cells' steps take turns with those of the calibration in one process, so that a busy machine
slows both alike: that is the error of the model alone. There, too, a line sees no step of a cell.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # before torch loads libgomp, as the harness's workers do

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from suite.advise import probes
from suite.advise.calibration import Calibration, calibrate
from suite.advise.calibration_streams import STREAMS
from suite.advise.calibrator import BLOCK_STEPS, _ShapeRun, typical
from suite.advise.case import Case
from suite.advise.counts import count_cell
from suite.advise.cut import CutTrainer, DensePart
from suite.advise.kernels import kernel_of
from suite.advise.model import CalibratedCosts, Prediction, predict, predict_cell
from suite.advise.shape import Shape
from suite.records.environment import capture
from suite.records.options import parse_workloads
from suite.records.record import Cell, Record
from suite.records.status import Status
from suite.run.console.command import make_display
from suite.run.memory_probes import available_host_bytes
from suite.run.plan import Options, plan_cells
from suite.run.runner import Choice, Runner
from suite.run.stream import open_workload
from suite.run.training import tables_of
from systems import registry
from systems.contract import CacheRatio, SystemSpec
from systems.registry import parse_systems
from workloads.batch import Batch, Workload

TURNS = 4
"""Of a calibration that goes together with its cells: four steps of each system."""
_MOST_LOOK_AHEAD = 64

SYSTEMS = "full_gpu,freq_cache,torchrec_uvm,torchrec_uvm_caching,fbgemm_uvm,fbgemm_uvm_caching,reference,no_embeddings"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per cell, and the median error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="all")
    parser.add_argument("--systems", default=SYSTEMS)
    parser.add_argument("--scale", default="small")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float, default=30.0, help="of calibration")
    parser.add_argument("--together", action="store_true", help="in one process, in turns")
    parser.add_argument("--out", type=Path, help="directory for records and advise.json")
    asked = parser.parse_args(arguments)
    options = Options(
        systems=tuple(parse_systems(asked.systems)),
        workloads=parse_workloads(asked.workloads),
        device="cpu",
        scale=asked.scale,
        optimizer=asked.optimizer,
        rounds=asked.rounds,
        steps=asked.steps,
    )
    cells, _ = plan_cells(options, datasets=None, host_bytes=available_host_bytes())
    if asked.together:
        calibration, rows = together([cell for cell in cells if not cell.round], rounds=TURNS)
    else:
        calibration, predictions = predicted(cells, seconds=asked.seconds)
        with tempfile.TemporaryDirectory() as temporary:
            records = measured(cells, out=asked.out or Path(temporary))
        rows = compared(cells, predictions, records)
    sys.stdout.write(_line("workload", "system", "measured ms", "predicted ms", "error"))
    for row in rows:
        sys.stdout.write(
            _line(
                str(row["workload"]),
                str(row["system"]),
                f"{row['measured_ms']:.2f}",
                f"{row['predicted_ms']:.2f}",
                f"{row['error']:+.1%}",
            )
        )
    middle = median(abs(float(row["error"])) for row in rows)
    sys.stdout.write(
        f"median absolute error {middle:.1%} over {len(rows)} cells, calibrated in {calibration.seconds:.0f} s, "
        f"load {os.getloadavg()[0]:.1f} on {calibration.threads} cores\n"
    )
    if asked.out is not None:
        content = {
            "figure": "advise",
            "environment": {
                "cpu": calibration.cpu,
                "threads": calibration.threads,
                "packages": calibration.packages,
                "load_average": os.getloadavg()[0],
            },
            "scale": asked.scale,
            "optimizer": asked.optimizer,
            "rounds": asked.rounds,
            "together": asked.together,
            "calibration_s": calibration.seconds,
            "median_absolute_error": middle,
            "cells": rows,
        }
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "advise.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def predicted(cells: Sequence[Cell], *, seconds: float) -> tuple[Calibration, dict[str, Prediction]]:
    """Calibrate for cells and predict each, by label without the round."""
    first = {_name(cell): cell for cell in cells}
    workloads = {cell.setting: open_workload(cell) for cell in cells}
    shapes = dict.fromkeys(Shape.of(cell, workloads[cell.setting]) for cell in first.values())
    kernels = dict.fromkeys(kernel_of(cell.system, device=cell.device) for cell in first.values())
    calibration = calibrate(list(shapes), list(kernels), seconds=seconds)
    return calibration, {
        name: predict_cell(cell, calibration, count_cell(cell), workload=workloads[cell.setting])
        for name, cell in first.items()
    }


def measured(cells: list[Cell], *, out: Path) -> list[Record]:
    """Run cells as the suite does."""
    runner = Runner(
        cells, out=out, environment=capture(threads=len(os.sched_getaffinity(0))), choice=Choice.RESUME, timeout_s=None
    )
    with make_display(quiet=True, as_json=False) as display:
        return runner.run(display)


def compared(
    cells: Sequence[Cell], predictions: dict[str, Prediction], records: Sequence[Record]
) -> list[dict[str, object]]:
    """Predicted beside measured, by cell without its round."""
    found = []
    for name in dict.fromkeys(_name(cell) for cell in cells):
        steps = [
            record.measurement.timing.steps_per_s
            for record in records
            if _name(record.cell) == name and record.status is Status.OK and record.measurement is not None
        ]
        if not steps:
            continue
        found.append(_row(name, 1 / median(steps), predictions[name]))
    return found


def _row(name: str, measured_s: float, prediction: Prediction) -> dict[str, object]:
    system, _, workload = name.partition(" x ")
    return {
        "workload": workload,
        "system": system,
        "measured_ms": measured_s * 1e3,
        "predicted_ms": prediction.step_s * 1e3,
        "error": prediction.step_s / measured_s - 1,
        "terms_ms": {term: seconds * 1e3 for term, seconds in prediction.terms_s.items()},
    }


def together(cells: Sequence[Cell], *, rounds: int) -> tuple[Calibration, list[dict[str, object]]]:
    """Steps of cells in turn with those of their calibration, by workload; the first turn is left out."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    started = time.monotonic()
    shapes, rows = [], []
    for workload_name in dict.fromkeys(cell.workload for cell in cells):
        mine = [cell for cell in cells if cell.workload == workload_name]
        workload = open_workload(mine[0])
        kernels = list(dict.fromkeys(kernel_of(cell.system, device="cpu") for cell in mine))
        run = _ShapeRun(Shape.of(mine[0], workload), kernels, seconds=1.0)
        subjects = [subject for kernel in kernels for subject in run._built(kernel)]
        ahead = _MOST_LOOK_AHEAD
        steps = mine[0].warmup_steps + rounds * len(STREAMS) * BLOCK_STEPS
        batches = [workload.batch(index) for index in range(steps + ahead + 1)]
        frequencies = workload.frequencies()
        trainers = [_trainer(cell, workload, frequencies, run, batches) for cell in mine]
        for trainer in trainers:
            for _ in range(mine[0].warmup_steps):
                trainer.step()
        run._sequence.make(rounds * len(STREAMS) * BLOCK_STEPS + ahead + 1)
        found: list[list[float]] = [[] for _ in mine]
        for _ in range(rounds):
            for subject in subjects:
                run._turn(subject)
            for trainer, seconds in zip(trainers, found, strict=True):
                for step in range(len(STREAMS) * BLOCK_STEPS):
                    clocks = trainer.step()[1]
                    if step:
                        seconds.append(clocks.announce_s + clocks.lookup_s + clocks.dense_s + clocks.update_s)
        costs = run._costs(subjects, rounds=rounds)
        shapes.append(costs)
        here = capture(threads=torch.get_num_threads())
        calibration = Calibration(
            machine=here.machine,
            cpu=here.cpu,
            gpu=here.gpu,
            threads=here.threads,
            packages=here.packages,
            seconds=time.monotonic() - started,
            probes=probes.measure(torch.device("cpu")),
            shapes=tuple(shapes),
        )
        for cell, seconds in zip(mine, found, strict=True):
            prediction = predict(Case.of(cell, workload), count_cell(cell), CalibratedCosts(calibration))
            rows.append(_row(_name(cell), typical(seconds[len(STREAMS) * BLOCK_STEPS - 1 :]), prediction))
    return calibration, rows


def _trainer(
    cell: Cell, workload: Workload, frequencies: Mapping[str, Tensor], run: _ShapeRun, batches: Sequence[Batch]
) -> CutTrainer:
    variant = registry.Variant.parse(cell.system)
    found = registry.load(variant)
    spec = SystemSpec(
        tables=tables_of(workload, cell.embedding_dim),
        optimizer=run._optimizer,
        device=torch.device("cpu"),
        budget=CacheRatio(ratio=cell.cache_ratio or 1.0),
        batch_lookups=workload.batch_lookups,
        frequencies=frequencies,
        parameters=registry.resolved_parameters(variant, found),
    )
    return CutTrainer(found(spec), DensePart(Shape.of(cell, workload), spec.tables, run._optimizer), iter(batches))


def _name(cell: Cell) -> str:
    return f"{cell.system} x {cell.workload}"


def _line(workload: str, system: str, *cells: str) -> str:
    return f"{workload:<15}{system:<30}" + "".join(f"{cell:>13}" for cell in cells) + "\n"


if __name__ == "__main__":
    main()
