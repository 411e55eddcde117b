"""GB/s of rows between host memory and a CUDA device, by each way that the cache has: run as a script.

    python results/cuda/exchange_rates.py [--out results/cuda/exchange_rates.json]

`copy`: one block of pinned memory, what the link can do. `staged`: threads of the host gather or scatter rows, and a
block is copied. `torch`: the device gathers or scatters rows by torch's own kernels, on all its multiprocessors.
`exchange, n`: it does so by the cache's kernel in n programs. With no look-ahead and nothing else on the device: the
best that each way can do, not what it takes from training beside it.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from torch.utils.benchmark import Timer

from suite.records.environment import NO_SPEED, VIRTUAL_DEVICE, capture
from suite.records.store import write_json
from systems.freq_cache.tiers import copy_kernels
from systems.freq_cache.tiers.slow_tier import PinnedTier, RowLayout

PROGRAMS = (1, 2, 4, 8, 16, 32, 64)
LEAST_S = 0.2
"""For which a way is timed."""
LAYOUTS = {"sgd": RowLayout(128, torch.float32, {}), "rowwise_adagrad": RowLayout(128, torch.float32, {"sum": 1})}


def ways(tier: PinnedTier, device: torch.device, moved: int) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Name, direction, and what moves so many records."""
    cuda = device.type == "cuda"
    here = torch.empty(moved, tier.layout.width, dtype=tier.layout.element, device=device)
    staging = tier.layout.empty(moved, pin=cuda).zero_()
    wanted = torch.randperm(tier.rows)[:moved]
    rows = wanted.to(device)

    def staged_in() -> None:
        tier.read(wanted, staging)
        here.copy_(staging, non_blocking=True)

    def staged_out() -> None:
        staging.copy_(here)
        tier.write(wanted, staging)

    yield "copy", "in", lambda: here.copy_(staging, non_blocking=True)
    yield "copy", "out", lambda: staging.copy_(here, non_blocking=True)
    yield "staged", "in", staged_in
    yield "staged", "out", staged_out
    yield "torch", "in", lambda: torch.index_select(tier.on_device, 0, rows, out=here)
    yield "torch", "out", lambda: tier.on_device.index_copy_(0, rows, here)
    for programs in PROGRAMS:
        with patch.object(copy_kernels, "PROGRAMS", programs):
            for way, gathers in (("in", True), ("out", False)):
                copy = partial(copy_kernels.copy_rows, tier.on_device, rows, here, gathers=gathers)
                yield f"exchange, {programs}", way, copy


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and leave a record where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000, help="in host memory")
    parser.add_argument("--moved", type=int, default=32_768, help="at a time")
    parser.add_argument("--out", type=Path, help="record of the figures, as JSON")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    environment, found = capture(), []
    for optimizer, layout in LAYOUTS.items():
        tier = PinnedTier(options.rows, layout, device)
        tier.records.zero_()  # pages that nobody wrote are all one
        for way, direction, move in ways(tier, device, options.moved):
            seconds = Timer("move()", globals={"move": move}).blocked_autorange(min_run_time=LEAST_S).median
            rate = options.moved * layout.record_bytes / seconds / 1e9
            found.append({"optimizer": optimizer, "way": way, "direction": direction, "gb_per_s": round(rate, 2)})
        tier.close()
    if environment.gpu == VIRTUAL_DEVICE:
        sys.stdout.write(f"every way ran; {NO_SPEED}\n")
        return
    table = pd.DataFrame(found).pivot(index="way", columns=["optimizer", "direction"], values="gb_per_s")
    sys.stdout.write(table.loc[list(dict.fromkeys(row["way"] for row in found))].to_string() + "\n")
    if options.out is not None:
        record = {
            "records": options.rows,
            "moved": options.moved,
            "rates": found,
            "environment": environment.model_dump(mode="json"),
        }
        write_json(options.out, record, indent=2)


if __name__ == "__main__":
    main()
