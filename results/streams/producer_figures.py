"""What producing batches in other processes costs and gives, and how long training waits: run as a script.

    python results/streams/producer_figures.py [--workloads criteo_kaggle,avazu] [--scale full] [--workers 1,2]

For each workload: milliseconds per batch in one process, seconds until the first batch of the producers, batches per
second of them all, milliseconds of the taking process per batch, and the share of its time that a trainer waits whose
steps take as long as stated.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from suite.records.options import parse_workloads
from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.run.cell.feed import DuringTraining
from suite.run.cell.stream import open_workload
from suite.run.plan import Options, plan_cells
from systems.groups import parse_systems
from workloads.batch import Split
from workloads.producer import Producer

BATCHES = 40
HOST_BYTES = 1 << 40


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="all")
    parser.add_argument("--scale", default="full", choices=list(SCALES))
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--step-ms", type=float, default=50.0, help="of the trainer that is imitated")
    options = parser.parse_args()
    say("| workload | workers | ms per batch alone | first batch s | batches/s | ms to take one | waits % |")
    say("|---|---:|---:|---:|---:|---:|---:|")
    for cell in cells(options.workloads, options.scale):
        alone = alone_ms(cell)
        for workers in map(int, options.workers.split(",")):
            figures = produced(cell, workers=workers, step_s=options.step_ms / 1000)
            say(f"| {cell.workload} | {workers} | {alone:.1f} | " + " | ".join(figures) + " |")


def cells(workloads: str, scale: str) -> list[Cell]:
    """One cell per workload."""
    systems = tuple(parse_systems("full_gpu"))
    options = Options(systems=systems, workloads=parse_workloads(workloads), device="cpu", scale=scale)
    return plan_cells(options, datasets=None, host_bytes=HOST_BYTES)[0]


def alone_ms(cell: Cell) -> float:
    """Milliseconds of this process per batch."""
    workload = open_workload(cell)
    workload.batch(0, Split.TRAIN)
    start = time.perf_counter()
    for index in range(1, 11):
        workload.batch(index, Split.TRAIN)
    return 100 * (time.perf_counter() - start)


def produced(cell: Cell, *, workers: int, step_s: float) -> list[str]:
    """First batch, rate, cost of taking, and waiting of a trainer that takes a batch per step."""
    start = time.perf_counter()
    total = 1 + 3 * BATCHES
    with Producer(partial(open_workload, cell), total=total, workers=workers, slots=4 * workers) as producer:
        producer.request(1)
        producer.take()
        first_s = time.perf_counter() - start

        start = time.perf_counter()
        producer.request(BATCHES)
        for _ in range(BATCHES):
            producer.take()
        rate = BATCHES / (time.perf_counter() - start)

        taking_s = 0.0
        for _ in range(BATCHES):
            producer.request(1)
            producer.settle()
            start = time.perf_counter()
            producer.take()
            taking_s += time.perf_counter() - start

        waiting_s = 0.0
        feed = DuringTraining(producer, total=BATCHES)
        feed.fill(BATCHES)
        begin = time.perf_counter()
        for _ in range(BATCHES):
            start = time.perf_counter()
            feed.take()
            waiting_s += time.perf_counter() - start
            time.sleep(step_s)
        share = waiting_s / (time.perf_counter() - begin)
        feed.close()
    return [f"{first_s:.1f}", f"{rate:.1f}", f"{1000 * taking_s / BATCHES:.2f}", f"{100 * share:.2f}"]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
