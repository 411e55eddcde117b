"""Train systems on a CUDA device, and compare every loss and all rows bit for bit: run as a script.

    python results/cuda/bitwise.py --steps 500 --out results/cuda/bitwise.json

All train the same batches at published size, in fp32. torch, cuBLAS and fbgemm are told to add in a fixed order, so
systems that keep the same rows have the same losses, and afterwards the same sum of all rows' bits. With `--writes-ms`
write-backs of our cache are late: rows are missing again before they have landed, as where the host runs far ahead.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import tee
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is loaded

import torch
from torch import Tensor

from suite.records.environment import capture
from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.records.store import write_json
from suite.run.cell.feed import PreloadedBatches, made_batches
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import Trainer, fixed_order, load_initial_rows, multiply_in
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from systems.contract import EmbeddingSystem
from systems.freq_cache.tiers.slow_tier import HostTier
from systems.registry import Variant, load
from workloads.batch import Batch

SYSTEMS = "full_gpu,freq_cache,freq_cache[look_ahead=4]"
_READ_ROWS = 1 << 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, compare with the first system, and leave a record where asked. Status 1: one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default=SYSTEMS, help=f"[{SYSTEMS}]")
    parser.add_argument("--workload", default="criteo_kaggle")
    parser.add_argument("--scale", default="full", choices=list(SCALES))
    parser.add_argument("--cache-ratio", default="0.015")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--writes-ms", type=float, default=0.0, help="delay of every write to host memory [0]")
    parser.add_argument("--out", type=Path, help="record of the losses, as JSON")
    options = parser.parse_args(arguments)
    found = compared(options)
    first = next(iter(found.values()))
    different = []
    for name, one in found.items():
        same = (one["losses"], one["rows"]) == (first["losses"], first["rows"])
        different += [] if same else [name]
        sys.stdout.write(f"{name}: {'bit for bit the first' if same else 'DIFFERS from the first'}; ")
        sys.stdout.write(f"batches that waited for rows: {one['late_batches']}\n")
    if options.out is not None:
        environment = capture(threads=torch.get_num_threads()).model_dump(mode="json")
        write_json(options.out, {"steps": options.steps, "systems": found, "environment": environment})
    if different:
        raise SystemExit(1)


def compared(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What every system makes of the same batches; see `trained`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = Options(
        systems=options.systems, workloads=options.workload, scale=options.scale, cache_ratio=options.cache_ratio
    )
    cells = plan_cells(chosen, device=device, host_bytes=1 << 40)[0]
    batches = made_batches(CellSetup.of(cells[0]).workload.batch, pin_memory=device == "cuda")
    multiply_in(tf32=False)
    with delayed(options.writes_ms / 1e3), fixed_order(torch.device(device)):
        each = zip(cells, tee(batches, len(cells)), strict=True)
        return {cell.system: trained(cell, same, options.steps) for cell, same in each}


def trained(cell: Cell, batches: Iterator[Batch], steps: int) -> dict[str, Any]:
    """The losses of a system's steps, the sum of its rows' bits, and how many batches waited for rows."""
    setup, losses = CellSetup.of(cell), list[Tensor]()
    system = load(Variant.parse(cell.system))(setup.spec)
    load_initial_rows(system, seed=cell.seed)
    mlps: dict[str, Any] = {"bottom_mlp": cell.bottom_mlp, "top_mlp": cell.top_mlp, "seed": cell.seed}
    trainer = Trainer(system, setup.workload, **mlps, feed=PreloadedBatches(batches), total_steps=steps)
    trainer.run(steps, on_scores=lambda _logits, _labels, loss: losses.append(loss))
    made = {
        "losses": torch.stack(losses).tolist(),
        "rows": bits_of(system),
        "late_batches": system.counters().late_batches,
    }
    getattr(system, "close", lambda: None)()
    return made


def delayed(seconds: float) -> Any:
    """A block in which every write to host memory is delayed."""
    write = HostTier.write

    def late(tier: HostTier, rows: Tensor, records: Tensor) -> None:
        time.sleep(seconds)
        write(tier, rows, records)

    return patch.object(HostTier, "write", late if seconds else write)


def bits_of(system: EmbeddingSystem) -> int:
    """The sum of the bits of all rows, as int32 numbers."""
    total = 0
    for table in system.spec.tables:
        for start in range(0, table.num_embeddings, _READ_ROWS):
            rows = system.read_rows(table.name, torch.arange(start, min(start + _READ_ROWS, table.num_embeddings)))
            total += int(rows.weights.contiguous().view(torch.int32).sum(dtype=torch.int64))
    return total


if __name__ == "__main__":
    main()
