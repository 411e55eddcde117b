"""What the programs of the cache's figures share: their options, and the record that each leaves."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # else OpenMP's threads spin on cores that others need

import torch

from suite.records.environment import capture
from suite.records.store import write_atomically

Measure = Callable[[argparse.Namespace], dict[str, Any]]


def leave_record(
    figure: str, measure: Measure, *, steps: int, words: str | None, arguments: Sequence[str] | None = None
) -> None:
    """Read the options, measure, and write the record.

    Args:
        figure: Its name in the record.
        measure: Takes the options and returns what the record says of the figure.
        steps: Batches, where the command line does not say how many.
        words: What `--help` says first.
        arguments: In place of the command line.
    """
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="of all tables; default: those of the figure")
    parser.add_argument("--lookups", type=int, help="ids per batch; default: those of the figure")
    parser.add_argument("--ratio", type=float, help="cached rows as a share of all; default: that of the figure")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--steps", type=int, default=steps, help="batches; default: %(default)s")
    parser.add_argument("--block", type=int, default=24, help="steps per turn")
    parser.add_argument("--out", type=Path, required=True)
    setting = parser.parse_args(arguments)
    record = {
        "figure": figure,
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "load_average": os.getloadavg()[0],
        "steps": setting.steps,
        **measure(setting),
    }
    text = json.dumps(record, indent=1) + "\n"
    write_atomically(setting.out, text)
    sys.stdout.write(text)
