"""Command lines that measure again what a page shows, made from the options of its cells."""

import shlex
from collections.abc import Iterable

from suite.records.groups import Group
from suite.records.scales import SCALES, scale_of
from suite.tables.settings import on_drive

DATA = "data"
"""Stands for the directory of prepared datasets, which no record is published with."""
Options = dict[str, str]


def commands(groups: Iterable[Group]) -> tuple[str, ...]:
    """One command for all groups that differ in workload or in cache size alone, in order of the first of each."""
    merged = list(map(options, groups))
    for flag in ("--workloads", "--cache-ratio", "--device-budget", "--host-budget"):
        merged = _merged(merged, flag)
    lines = [["python", "run_bench.py", *(word for pair in one.items() for word in pair if word)] for one in merged]
    return tuple(dict.fromkeys(map(shlex.join, lines)))


def options(group: Group) -> Options:
    """Options of a group's cells by flag, less those that are the scale's own; empty where a flag takes no value."""
    cell = group.cell
    scale = scale_of(cell.scale, on_drive=on_drive(group)) if cell.scale in SCALES else None
    rounds = max(len(runs) for runs in group.rounds_by_system.values())
    found: Options = {"--systems": ",".join(group.rounds_by_system), "--workloads": cell.workload}
    if cell.data == "real":
        found["--data-dir"] = DATA
    if scale is not None:
        found["--scale"] = scale.name
    found |= {"--device": cell.device, "--optimizer": cell.optimizer}
    own = {
        "--lr": (cell.lr, scale and scale.lr[cell.optimizer]),
        "--batch-size": (cell.batch_size, scale and scale.batch_size),
        "--embedding-dim": (cell.embedding_dim, scale and scale.embedding_dim),
        "--steps": (
            cell.steps,
            scale and scale.counted_steps == cell.counted_steps and scale.train_steps + cell.counted_steps,
        ),
        "--frequency-prefix": (cell.frequency_prefix, 1),
        "--rounds": (rounds, 1),
        "--seed": (cell.seed, 0),
        "--ranks": (cell.ranks, None),
        "--nnodes": (cell.nodes, 1),
        "--rdzv-endpoint": (cell.rendezvous, None),
        "--tf32": ("" if cell.tf32 else None, None),
    }
    found |= {flag: str(value) for flag, (value, usual) in own.items() if value != usual}
    if cell.host_budget_bytes is not None:
        found |= {"--tier": "disk", "--host-budget": str(cell.host_budget_bytes)}
    elif cell.device_budget_bytes is not None:
        found["--device-budget"] = str(cell.device_budget_bytes)
    elif cell.cache_ratio is not None:
        found["--cache-ratio"] = str(cell.cache_ratio)
    return found


def _merged(given: list[Options], flag: str) -> list[Options]:
    """Options that differ in the value of one flag alone, together."""
    found: dict[tuple[tuple[str, str], ...], Options] = {}
    for one in given:
        rest = tuple((name, value) for name, value in one.items() if name != flag)
        known = found.setdefault((*rest, ("has it", str(flag in one))), dict(one))
        if flag in one and one[flag] not in known[flag].split(","):
            known[flag] += f",{one[flag]}"
    return list(found.values())
