"""Distance that the suite measures between equal systems: copies of the baseline beside each other.

    python results/turns/alike.py --out results/turns/alike.json

Copies of the baseline take turns as the systems of a run do. Of every contest, all pairs of copies are compared as the
tables compare systems. Copies of one contest share their turns, so pairs are not independent: contests are what counts.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from suite.records.environment import capture
from suite.records.measured import Turns
from suite.records.record import Record, Status
from suite.records.scales import SCALES
from suite.records.store import write_json
from suite.run.conditions import MachineMonitor, interference
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from suite.run.process import limits_of
from suite.run.turns.groups import Participant, TimingGroup
from suite.run.turns.timing import time_group
from suite.tables.statistics import relative_speed


def main(arguments: Sequence[str] | None = None) -> None:
    """Hold the contests, print, and leave a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="criteo_kaggle,avazu,criteo_1tb")
    parser.add_argument("--scale", default="small", choices=list(SCALES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--contests", type=int, default=5, help="of every workload")
    parser.add_argument("--copies", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    environment = capture()
    options = Options(
        systems="full_gpu",
        workloads=asked.workloads,
        scale=asked.scale,
    )
    cells, _ = plan_cells(options, device=asked.device, host_bytes=1 << 40)
    contests = []
    for number, cell in itertools.product(range(asked.contests), cells):
        record = Record(key="", cell=cell, status=Status.OK, started_at="", wall_s=0.0, environment=environment)
        participants = tuple(Participant(name=f"copy {copy}", record=record) for copy in range(asked.copies))
        group = TimingGroup(participants=participants, isolation="one process", turns=cell.turns, steps=cell.turn_steps)
        watch = MachineMonitor(cuda=cell.device == "cuda")
        with tempfile.TemporaryDirectory() as folder:
            limits = limits_of(cell, timeout_s=None, cells=asked.copies)
            result = time_group(group, limits=limits, log=Path(folder) / "turns.log")
        if result.failed:
            raise SystemExit(f"{cell.workload}: {next(iter(result.failed.values())).reason}")
        contests.append(
            {
                "workload": cell.workload,
                "disturbed": interference(watch.conditions(complete=True), wall_s=watch.wall_s),
                "seconds": {
                    one.name: [[turn.seconds for turn in build] for build in result.series(one.name)[0]]
                    for one in participants
                },
            }
        )
        sys.stderr.write(f"{number + 1}/{asked.contests} {cell.workload} {'; '.join(contests[-1]['disturbed'])}\n")
    compared = [pair for contest in contests for pair in pairs(contest, record)]
    summary = {
        "pairs": len(compared),
        "missed": sum(not low <= 1 <= high for _, low, high in compared),
        "farthest_from_1": max(abs(ratio - 1) for ratio, _, _ in compared),
        "median_distance_from_1": statistics.median(abs(ratio - 1) for ratio, _, _ in compared),
        "median_half_width": statistics.median((high - low) / 2 for _, low, high in compared),
        "median_ms_per_step": 1e3
        * statistics.median(
            second / cells[0].turn_steps
            for contest in contests
            for series in contest["seconds"].values()
            for build in series
            for second in build
        ),
    }
    sys.stdout.write(json.dumps(summary, indent=1) + "\n")
    record_of_all = {
        "environment": environment.model_dump(mode="json"),
        "scale": asked.scale,
        "way": "one process",
        "summary": summary,
        "contests": contests,
    }
    write_json(asked.out, record_of_all, indent=None)


def pairs(contest: dict, record: Record) -> list[tuple[float, float, float]]:
    """Ratio and interval of every pair of copies."""
    runs = []
    for name, seconds in contest["seconds"].items():
        turns = Turns(contest="c", way="one process", steps=record.cell.turn_steps, system_s=seconds)
        cell = record.cell.model_copy(update={"system": name})
        runs.append([record.model_copy(update={"cell": cell, "turns": turns})])
    found = [relative_speed(one, other) for one, other in itertools.combinations(runs, 2)]
    return [(ratio.value, ratio.low, ratio.high) for ratio in found]


if __name__ == "__main__":
    main()
