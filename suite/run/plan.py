"""Planning: from options to the ordered list of cells, each with system, workload, setting and steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from suite.records.command_line import BadOption, parse_prepared
from suite.records.record import Cell
from suite.records.scales import Scale, default_scale, scale_of
from systems.registry import Variant
from workloads.schema import SCHEMAS
from workloads.streams.tracks import split_name

if TYPE_CHECKING:  # it imports torch, which planning does not need
    from workloads.prepared import PreparedWorkload

_LEAST_STEPS = 16
"""Minimum steps on a small real dataset: with fewer the batch is halved."""
_LEAST_BATCH = 16
_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "batch_size": (lambda size: size >= 1, "at least 1"),
    "rounds": (lambda rounds: rounds >= 1, "at least 1"),
    "steps": (lambda steps: steps >= 4, "at least 4"),
    "lr": (lambda lr: lr > 0, "above 0"),
    "seed": (lambda seed: 0 <= seed < 2**63, "from 0 to 2**63 - 1"),  # what torch's generators take
    "frequency_prefix": (lambda share: 0 < share <= 1, "above 0 and at most 1"),
    "embedding_dim": (lambda dim: dim >= 4 and dim % 4 == 0, "a multiple of 4 (fbgemm's kernels need that)"),
}
_MOST_RANKS = 64
"""Maximum ranks: they split the batches of verification too."""
_OF_SCALE = (
    "batch_size", "embedding_dim", "bottom_mlp", "top_mlp", "train_steps", "counted_steps", "quality_points",
    "evaluation_batches", "builds", "warmup_steps", "turns", "turn_steps",
)  # fmt: skip
_OF_OPTIONS = (
    "optimizer", "seed", "frequency_prefix", "ranks", "nodes", "rendezvous", "tf32",
)  # fmt: skip
"""Fields that a cell copies from its scale and from the options."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command line; None stands for the scale's own value."""

    systems: tuple[Variant, ...]
    workloads: tuple[str, ...]
    device: str
    scale: str | None = None
    optimizer: str = "sgd"
    lr: float | None = None
    batch_size: int | None = None
    embedding_dim: int | None = None
    cache_ratios: tuple[float, ...] = ()
    device_budgets: tuple[int, ...] = ()
    on_drive: bool = False
    host_budgets: tuple[int, ...] = ()
    steps: int | None = None
    rounds: int = 1
    seed: int = 0
    frequency_prefix: float = 1.0
    ranks: int | None = None
    nodes: int = 1
    rendezvous: str | None = None
    tf32: bool = False


def check_options(options: Options) -> None:
    """Refuse options that can never run.

    Raises:
        BadOption: the first option that is out of range.
    """
    for name, (fine, expected) in _RANGES.items():
        value = getattr(options, name)
        if value is not None and not fine(value):
            raise BadOption(f"--{name.replace('_', '-')}: {value} is out of range, it must be {expected}")
    if options.host_budgets and not options.on_drive:
        raise BadOption("--host-budget is for rows on a drive: give --tier disk")
    if options.on_drive and options.cache_ratios:
        raise BadOption("--tier disk has a --host-budget, and no --cache-ratio")
    if options.on_drive and len(options.device_budgets) > 1:
        raise BadOption("--device-budget: with --tier disk give one, which is part of every --host-budget")
    if options.on_drive and any(given >= least for given in options.device_budgets for least in options.host_budgets):
        raise BadOption("--device-budget: with --tier disk it is part of the --host-budget, so give less than that")
    if options.on_drive and options.device == "cuda":
        raise BadOption("--tier disk computes on a CPU: give --device cpu")
    if options.tf32 and options.device != "cuda":
        raise BadOption("--tf32 is of NVIDIA devices, and a CPU computes here: leave it out, or give --device cuda")
    _check_ranks(options)
    if options.cache_ratios and options.device_budgets:
        raise BadOption("--cache-ratio and --device-budget exclude each other: a budget sets every system's cache size")


def _check_ranks(options: Options) -> None:
    """Refuse inconsistent numbers of ranks and machines. Powers of two only: then means over parts add up exactly."""
    ranks, nodes = options.ranks, options.nodes
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("", "1"):
        raise BadOption(f"WORLD_SIZE is {started}: give --ranks {started} to one process, which starts the ranks")
    if ranks is None:
        if nodes != 1 or options.rendezvous is not None:
            raise BadOption("--nnodes and --rdzv-endpoint are for ranks: give --ranks")
        return
    if not 1 <= ranks <= _MOST_RANKS or ranks & (ranks - 1):
        raise BadOption(f"--ranks: {ranks} is out of range, it must be a power of two, {_MOST_RANKS} at most")
    if not 1 <= nodes <= ranks or ranks % nodes:
        raise BadOption(f"--nnodes: {ranks} ranks are not to be had from {nodes} machines with as many each")
    if nodes > 1 and options.rendezvous is None:
        raise BadOption("--nnodes: several machines need a place to meet: give --rdzv-endpoint host:port")
    if options.on_drive or options.device_budgets:
        raise BadOption("--ranks takes a --cache-ratio, and neither --tier disk nor --device-budget")


def open_datasets(data_dir: Path, workloads: str) -> dict[str, PreparedWorkload]:
    """Open the prepared datasets that `--workloads` names, in its order; `all` means all in the directory.

    Raises:
        BadOption: the directory lacks one of them.
        DataError: the directory has no prepared data, or they are damaged.
    """
    from workloads.prepared import PreparedWorkload, find_prepared

    folders = find_prepared(data_dir)
    names = parse_prepared(workloads, folders, data_dir=data_dir)
    return {name: PreparedWorkload.open(folders[name], batch_size=1) for name in names}


def plan_cells(
    options: Options, *, datasets: dict[str, PreparedWorkload] | None, host_bytes: int
) -> tuple[list[Cell], list[str]]:
    """Plan all cells of a run, in order. Returns also notes about decisions made for the user.

    Rounds follow one another; in each, the cells of one setting, which are timed against each other afterwards, are
    adjacent. Options must be checked before; without `datasets` (by workload) streams are synthetic.
    """
    settings: list[Cell] = []
    notes: list[str] = []
    for workload in options.workloads:
        dataset = datasets[workload] if datasets is not None else None
        training_rows, table_rows = _size(workload, dataset)
        name = options.scale
        if name is None:
            name, why = default_scale(workload, table_rows=table_rows, device=options.device, host_bytes=host_bytes)
            notes.append(why)
        scale = scale_of(name, on_drive=options.on_drive)
        scale, changes = _adjusted(scale, options, training_rows)
        notes += [f"{workload}: {change}" for change in changes]
        setting = _setting(workload, scale, options, dataset)
        settings += [setting.model_copy(update=size) for size in _cache_sizes(options, scale)]
    cells = [
        setting.model_copy(update={"system": str(variant), "round": number})
        for number in range(options.rounds)
        for setting in settings
        for variant in options.systems
    ]
    return cells, notes


def _cache_sizes(options: Options, scale: Scale) -> list[dict[str, float | int]]:
    """Cache sizes of the settings of a sweep; one setting without a sweep."""
    if options.on_drive:
        device: dict[str, float | int] = (
            {"device_budget_bytes": options.device_budgets[0]} if options.device_budgets else {}
        )
        budgets = dict.fromkeys(options.host_budgets or scale.host_budgets)
        return [device | {"host_budget_bytes": size} for size in budgets]
    if options.device_budgets:
        return [{"device_budget_bytes": size} for size in dict.fromkeys(options.device_budgets)]
    return [{"cache_ratio": ratio} for ratio in dict.fromkeys(options.cache_ratios or (scale.cache_ratio,))]


def _size(workload: str, dataset: PreparedWorkload | None) -> tuple[int, int]:
    """Training rows, and rows of all tables at full scale."""
    if dataset is not None:
        return dataset.epoch_rows(), sum(rows for _, rows in dataset.tables)
    schema = SCHEMAS[split_name(workload)[0]]
    return schema.train_rows, schema.table_rows


def _learning_rate(scale: Scale, optimizer: str, workload: str, dataset: PreparedWorkload | None) -> float:
    """The scale's learning rate; for SGD on bags divided by the mean pooling factor.

    Tables pool by sum and SGD changes every row of a bag by the same gradient, so the pooled vector changes by as many
    steps as the bag has ids: at a rate of 1 the loss of `mlperf_dlrm_v2` is NaN within 24 steps.
    """
    bags = SCHEMAS[split_name(workload)[0]].bags if dataset is None else None
    if bags is None or optimizer != "sgd":
        return scale.lr[optimizer]
    return round(scale.lr[optimizer] / bags.mean_hotness, 2)


def _setting(workload: str, scale: Scale, options: Options, dataset: PreparedWorkload | None) -> Cell:
    return Cell(
        system="",
        workload=workload,
        data="synthetic" if dataset is None else "real",
        data_dir=None if dataset is None else str(dataset.folder),
        data_digest=None if dataset is None else dataset.digest,
        scale=scale.name,
        device="cuda" if options.device == "cuda" else "cpu",
        lr=options.lr if options.lr is not None else _learning_rate(scale, options.optimizer, workload, dataset),
        eps=1e-8,
        max_rows=scale.max_rows if dataset is None else None,
        **{name: getattr(scale, name) for name in _OF_SCALE},
        **{name: getattr(options, name) for name in _OF_OPTIONS},
    )


def _adjusted(scale: Scale, options: Options, training_rows: int) -> tuple[Scale, list[str]]:
    """The scale with the options applied, and shrunk to one epoch. Returns also notes about the changes."""
    batch, dim = options.batch_size or scale.batch_size, options.embedding_dim or scale.embedding_dim
    scale = replace(scale, batch_size=batch, embedding_dim=dim)
    if options.steps is not None:
        scale = with_steps(scale, options.steps)
    scale, changes = fitted_to_epoch(scale, training_rows, on_drive=options.on_drive)
    if scale.batch_size % (options.ranks or 1):
        shared = f"{options.ranks} ranks cannot share a batch of {scale.batch_size}"
        raise BadOption(f"--ranks: {shared}: give another --batch-size{''.join(f' ({change})' for change in changes)}")
    return scale, changes


def with_steps(scale: Scale, steps: int) -> Scale:
    """The scale with `steps` training steps in all, an eighth of them counted."""
    counted = max(1, steps // 8)
    return replace(scale, train_steps=steps - counted, counted_steps=counted)


def fitted_to_epoch(scale: Scale, training_rows: int, *, on_drive: bool = False) -> tuple[Scale, list[str]]:
    """Shrink steps, then the batch, until no sample is trained on twice: repeated batches favour every cache.

    Systems on a drive are built once, and train the timed steps of all builds on one stream, with and without the MLPs.

    Raises:
        BadOption: even the smallest batch leaves fewer than four steps, or no turn on a drive.
    """
    wanted, batch = scale.train_steps + scale.counted_steps, scale.batch_size
    while training_rows // batch < min(wanted, _LEAST_STEPS) and batch > _LEAST_BATCH:
        batch = max(_LEAST_BATCH, batch // 2)
    steps = training_rows // batch
    if steps < 4:
        raise BadOption(f"--data-dir: {training_rows} training rows are too few for four batches of {batch}")
    changes = []
    if batch != scale.batch_size:
        why = f"because there are {training_rows:,} training rows"
        changes.append(f"batch {batch} instead of {scale.batch_size}, {why}")
    scale = replace(scale, batch_size=batch)
    if steps < wanted:
        changes.append(f"{steps} steps, one whole epoch, instead of {wanted}")
        scale = with_steps(scale, steps)
    fewer = _with_fewer_turns(scale, steps, 2 * scale.builds if on_drive else 1, changes)
    if not fewer.turns:
        raise BadOption(f"--data-dir: {training_rows} training rows are too few for turns on a drive: give more")
    return fewer, changes


def _with_fewer_turns(scale: Scale, steps: int, series: int, changes: list[str]) -> Scale:
    """The scale with at most `steps` steps of a system after a build, which takes its turns `series` times."""
    if scale.warmup_steps + series * scale.turns * scale.turn_steps <= steps:
        return scale
    warmup = min(scale.warmup_steps, max(1, steps // 8))
    turn_steps = min(scale.turn_steps, max(1, (steps - warmup) // (2 * series)))
    turns = (steps - warmup) // (series * turn_steps)
    changes.append(
        f"{warmup} steps and {turns} turns of {turn_steps} steps after each build, one whole epoch, instead of "
        f"{scale.warmup_steps} and {scale.turns} of {scale.turn_steps}"
    )
    return replace(scale, warmup_steps=warmup, turns=turns, turn_steps=turn_steps)
