"""Run as a script: trains as a cell does, and prints the native threads that each way leaves, as JSON."""

import json
import sys

import torch

from suite.records.command_line import ScaleName
from suite.run.cell.feed import open_feed
from suite.run.cell.setup import CellSetup
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from tests.unit.systems.threads_of_a_process import native_threads

STEPS = 50
BATCH_SIZE = 2048
"""The ids of a batch are more than torch copies on one thread."""


def main() -> None:
    found = []
    for system, producers in (("freq_cache", 0), ("freq_cache", 1), ("freq_cache[look_ahead=4]", 1)):
        options = Options(systems=system, workloads="criteo_kaggle", scale=ScaleName.SMOKE)
        (cell,), _ = plan_cells(options, device="cpu", host_bytes=1 << 40)
        sizes = {"batch_size": BATCH_SIZE, "train_steps": STEPS - 1, "counted_steps": 1}
        cell = cell.model_copy(update=sizes)
        setup = CellSetup.of(cell)
        torch.set_num_threads(2)
        device = setup.spec.device
        with open_feed(producers, cell, setup.workload, device=device, on_batch=lambda: None) as feed:
            embeddings, trainer = setup.build(feed, total_steps=STEPS, beat=lambda: None)
            trainer.run(STEPS)
            found.append((system, producers, native_threads()))
            del trainer, embeddings
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
