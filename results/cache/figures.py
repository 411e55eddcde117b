"""Measures a figure of docs/cache-size.md on this machine, and leaves its record beside this program.

    python results/cache/figures.py planning

The other figures are `misses`, `stage`, `table_size` and `miss_cost`: functions of `plans.py` and `steps.py`, which say
what is measured. With `--dim 16` the tables of `table_size` take 16 GB, with the default 32 twice that.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # else OpenMP's threads spin on cores that others need

import torch
from plans import misses, planning
from steps import miss_cost, stage, table_size

from suite.records.environment import capture
from suite.records.store import write_atomically

FIGURES = {
    "planning": (planning, 120),
    "misses": (misses, 250),
    "stage": (stage, 600),
    "table_size": (table_size, 480),
    "miss_cost": (miss_cost, 480),
}
"""What measures each, and how many batches are enough."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=list(FIGURES))
    parser.add_argument("--rows", type=int, help="of all tables; default: those of the figure")
    parser.add_argument("--lookups", type=int, help="ids per batch; default: those of the figure")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--steps", type=int, help="batches; default: enough for the figure")
    parser.add_argument("--block", type=int, default=24, help="steps per turn")
    parser.add_argument("--out", type=Path, help="default: the figure's name, beside this program")
    setting = parser.parse_args(arguments)
    measure, enough = FIGURES[setting.figure]
    setting.steps = setting.steps or enough
    record = {
        "figure": setting.figure,
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "load_average": os.getloadavg()[0],
        "steps": setting.steps,
        **measure(setting),
    }
    text = json.dumps(record, indent=1) + "\n"
    write_atomically(setting.out or Path(__file__).with_name(f"{setting.figure}.json"), text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
