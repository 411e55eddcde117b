"""What a batch of each synthetic stream costs at full size, on one core.

    python results/streams/generator_figures.py
    python results/streams/generator_figures.py --workloads criteo_1tb,criteo_1tb@drift --batches 50

A batch has 16,384 samples with ids, dense features and labels. Beside its time stands that of drawing as many random
words as it uses with numpy's Philox: no generator that takes its words from there can be faster. The time of
the processor is that of one thread, whatever else the machine does. Compilation and the first batch are left out; the
others lie all over the training split.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import torch

from suite.records.scales import FULL
from workloads.batch import Split
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload


def random_words(workload: SyntheticWorkload) -> int:
    """Random words that a batch takes; Philox makes four per step of its counter."""
    source, made = workload._source, []

    def generator(*arguments: int) -> np.random.Philox:
        made.append(type(source).generator(source, *arguments))
        return made[-1]

    with patch.object(source, "generator", generator):
        workload.batch(0)
    return 4 * int(made[-1].state["state"]["counter"][0])


def measure(name: str, *, batch_size: int, batches: int) -> dict[str, float]:
    """Median milliseconds per batch, by the clock and of the processor, and those of its words alone."""
    workload = SyntheticWorkload.create(name, batch_size=batch_size, seed=0)
    lookups = workload.batch(0).features.values().numel()
    words = random_words(workload)
    generator = np.random.Philox(key=1)
    indices = np.linspace(0, workload.batches(Split.TRAIN) - 1, batches, dtype=np.int64).tolist()
    made = [_milliseconds(lambda index=index: workload.batch(index)) for index in indices]
    drawn = [_milliseconds(lambda: generator.random_raw(words)) for _ in indices]
    clock_ms, cpu_ms = (statistics.median(times) for times in zip(*made, strict=True))
    return {
        "ids": lookups,
        "ms": clock_ms,
        "cpu_ms": cpu_ms,
        "words": words,
        "words_cpu_ms": statistics.median(cpu for _, cpu in drawn),
    }


def _milliseconds(work: Callable[[], object]) -> tuple[float, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - clock) * 1e3, (time.process_time() - cpu) * 1e3


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(SCHEMAS), help="names, with a track or without")
    parser.add_argument("--batch-size", type=int, default=FULL.batch_size)
    parser.add_argument("--batches", type=int, default=30)
    asked = parser.parse_args(arguments)
    sys.stdout.write(_line("workload", "ids", "ms", "CPU ms", "words", "words alone, CPU ms"))
    for name in asked.workloads.split(","):
        found = measure(name, batch_size=asked.batch_size, batches=asked.batches)
        sys.stdout.write(
            _line(
                name,
                f"{found['ids']:,}",
                f"{found['ms']:.2f}",
                f"{found['cpu_ms']:.2f}",
                f"{found['words']:,}",
                f"{found['words_cpu_ms']:.2f}",
            )
        )
        sys.stdout.flush()


def _line(name: str, *cells: str) -> str:
    widths = (10, 8, 8, 11, 20)
    return f"{name:<28}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)  # else OpenMP's idle threads, which spin, count as processor time
    main()
