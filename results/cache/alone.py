"""Steps of the cache with and without look-ahead, and of the baseline, each in a process of its own, in turns.

    python results/cache/alone.py
    python results/cache/alone.py --bottom-mlp 128 --top-mlp 128,64,1 --workloads criteo_kaggle --out FILE

What a system's threads do to its own training thread is seen here alone: systems that share a process share its OpenMP
threads too. A process whose turn it is not does nothing. In each turn a system is compared with the first one; a ratio
is the median over the turns of a process, then the geometric mean over processes, which differ by where their memory
lies. A record is made on an idle machine: `load_average` is that before each workload.
"""

import argparse
import json
import operator
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.records.environment import capture
from suite.records.record import Cell, Record, Status
from suite.records.scales import SCALES
from suite.records.store import write_json
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from suite.run.process import limits_of
from suite.run.turns.groups import Participant, TimingGroup
from suite.run.turns.timing import time_group

SYSTEMS = ("freq_cache", "freq_cache[look_ahead=4]", "full_gpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, measure, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="criteo_kaggle,avazu,criteo_1tb")
    parser.add_argument("--scale", default="small", choices=list(SCALES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--processes", type=int, default=6, help="of every system, one after another")
    parser.add_argument("--turns", type=int, default=3, help="of every process")
    parser.add_argument("--steps", type=int, default=60, help="of every turn")
    parser.add_argument("--bottom-mlp", type=_widths, help="hidden widths, as 512,256; default: the scale's")
    parser.add_argument("--top-mlp", type=_widths, help="the same, with the 1 at its end")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("alone.json"))
    asked = parser.parse_args(arguments)
    model = {name: widths for name in ("bottom_mlp", "top_mlp") if (widths := getattr(asked, name))}
    options = Options(
        systems=",".join(SYSTEMS),
        workloads=asked.workloads,
        scale=asked.scale,
    )
    cells, _ = plan_cells(options, device=asked.device, host_bytes=1 << 40)
    cells = [cell.model_copy(update={"builds": 1, **model}) for cell in cells]
    results = {}
    for workload in dict.fromkeys(cell.workload for cell in cells):
        mine = [cell for cell in cells if cell.workload == workload]
        mine.sort(key=lambda cell: SYSTEMS.index(cell.system))
        results[workload] = in_turns(mine, processes=asked.processes, turns=asked.turns, steps=asked.steps)
        sys.stdout.write(f"{workload}: {json.dumps(results[workload]['relative_speed'])}\n")
    record = {
        "environment": capture().model_dump(mode="json"),
        "scale": asked.scale,
        "bottom_mlp": cells[0].bottom_mlp,
        "top_mlp": cells[0].top_mlp,
        "steps_per_turn": asked.steps,
        "results": results,
    }
    write_json(asked.out, record)


def in_turns(cells: Sequence[Cell], *, processes: int, turns: int, steps: int) -> dict[str, Any]:
    """Seconds of every turn by system and process, steps per second, and speeds relative to the first system.

    Raises:
        SystemExit: a system failed; the message says why.
    """
    environment, load = capture(), os.getloadavg()[0]
    participants = tuple(
        Participant(
            name=cell.system,
            record=Record(key="", cell=cell, status=Status.OK, started_at="", wall_s=0.0, environment=environment),
            own_process=True,
        )
        for cell in cells
    )
    group = TimingGroup(participants=participants, isolation="own process", turns=turns, steps=steps)
    limits = limits_of(cells[0], timeout_s=None, cells=len(cells))
    seconds: dict[str, list[list[float]]] = {cell.system: [] for cell in cells}
    for _ in range(processes):
        with tempfile.TemporaryDirectory() as folder:
            result = time_group(group, limits=limits, log=Path(folder) / "turns.log")
        if result.failed:
            raise SystemExit(f"{cells[0].workload}: {next(iter(result.failed.values())).reason}")
        for name, own in seconds.items():
            own.append([turn.seconds for build in result.series(name)[0] for turn in build])
    first = seconds[cells[0].system]
    ratios = {
        name: [statistics.median(map(operator.truediv, *both)) for both in zip(first, own, strict=True)]
        for name, own in seconds.items()
    }
    return {
        "load_average": load,
        "steps_per_s": {
            name: statistics.geometric_mean(steps / statistics.median(one) for one in own)
            for name, own in seconds.items()
        },
        "relative_speed": {name: statistics.geometric_mean(own) for name, own in ratios.items()},
        "relative_speed_by_process": ratios,
        "seconds": seconds,
    }


def _widths(words: str) -> tuple[int, ...]:
    return tuple(map(int, words.split(",")))


if __name__ == "__main__":
    main()
