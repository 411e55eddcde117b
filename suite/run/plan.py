"""Planning: from options to the ordered list of cells, each with system, workload, setting and steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from suite.records.command_line import BadOption, parse_prepared, parse_shares, parse_sizes, parse_workloads
from suite.records.record import Cell
from suite.records.scales import LEAD_STEPS, Scale, default_scale, scale_of
from suite.run.console.options import Options, check_options, named_systems
from systems.registry import REPEATS_ON_CPU, split_list
from workloads.schema import SCHEMAS
from workloads.streams.tracks import split_name

if TYPE_CHECKING:  # it imports torch, which planning does not need
    from workloads.prepared import PreparedWorkload

_LEAST_STEPS = 16
"""Minimum steps on a small real dataset: with fewer the batch is halved."""
_LEAST_BATCH = 16
_OF_SCALE = (
    "batch_size", "embedding_dim", "bottom_mlp", "top_mlp", "train_steps", "counted_steps", "quality_points",
    "evaluation_batches", "builds", "warmup_steps", "turns", "turn_steps",
)  # fmt: skip
"""Fields that a cell copies from its scale."""


def plan_cells(options: Options, *, device: str, host_bytes: int) -> tuple[list[Cell], list[str]]:
    """Plan all cells of a run, in order. Returns also notes about decisions made for the user.

    Rounds follow one another; in each, the cells of one setting, which are timed against each other afterwards, are
    adjacent.

    Args:
        options: The options.
        device: `cpu` or `cuda`.
        host_bytes: Host memory that is available.

    Raises:
        BadOption: an option is out of range, or `--data-dir` lacks a workload.
        DataError: `--data-dir` has no prepared data, or they are damaged.
        UnknownSystem: a system, a parameter or a value is not known; a `ValueError`.
    """
    check_options(options, device=device)
    datasets = open_datasets(options)
    systems = named_systems(options, cuda=device == "cuda")
    settings: list[Cell] = []
    notes: list[str] = []
    if device == "cpu" and not (options.on_drive or options.ranks) and "distinct" in split_list(options.systems):
        repeats = ", ".join(REPEATS_ON_CPU)
        notes.append(f"without {repeats}, another system's kernel on a CPU: --systems all takes them too")
    for workload in parse_workloads(options.workloads) if datasets is None else datasets:
        dataset = None if datasets is None else datasets[workload]
        training_rows, table_rows = _size(workload, dataset)
        name: str | None = options.scale
        if name is None:
            name, why = default_scale(workload, table_rows=table_rows, device=device, host_bytes=host_bytes)
            notes.append(why)
        scale = scale_of(str(name), on_drive=options.on_drive)
        scale, changes = _adjusted(scale, options, training_rows)
        notes += [f"{workload}: {change}" for change in changes]
        setting = _setting(workload, scale, options, device, dataset)
        settings += [setting.model_copy(update=size) for size in _cache_sizes(options, scale)]
    cells = [
        setting.model_copy(update={"system": str(variant), "round": number})
        for number in range(options.rounds)
        for setting in settings
        for variant in systems
    ]
    return cells, notes


def open_datasets(options: Options) -> dict[str, PreparedWorkload] | None:
    """Open the prepared datasets that the options name, in their order; None: streams are synthetic."""
    if options.data_dir is None:
        return None
    from workloads.prepared import PreparedWorkload, find_prepared

    folders = find_prepared(options.data_dir)
    names = parse_prepared(options.workloads, folders, data_dir=options.data_dir)
    return {name: PreparedWorkload.open(folders[name], batch_size=1) for name in names}


def _cache_sizes(options: Options, scale: Scale) -> list[dict[str, float | int]]:
    """Cache sizes of the settings of a sweep; one setting without a sweep."""
    if options.on_drive:
        sizes = parse_sizes(options.host_budget, flag="--host-budget") or scale.host_budgets
        device = parse_sizes(options.device_budget, flag="--device-budget")
        if len(device) > 1 or any(part >= size for part in device for size in sizes):
            raise BadOption(
                "--device-budget is part of every --host-budget with --tier disk: give one size, below all of these"
            )
        part: dict[str, float | int] = {"device_budget_bytes": device[0]} if device else {}
        return [part | {"host_budget_bytes": size} for size in dict.fromkeys(sizes)]
    if sizes := parse_sizes(options.device_budget, flag="--device-budget"):
        return [{"device_budget_bytes": size} for size in dict.fromkeys(sizes)]
    ratios = parse_shares(options.cache_ratio, flag="--cache-ratio") or (scale.cache_ratio,)
    return [{"cache_ratio": ratio} for ratio in dict.fromkeys(ratios)]


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
    schema = SCHEMAS[split_name(workload)[0]] if dataset is None else None
    if schema is None or schema.hotness is None or optimizer != "sgd":
        return scale.lr[optimizer]
    return round(scale.lr[optimizer] / schema.mean_hotness, 2)


def _setting(workload: str, scale: Scale, options: Options, device: str, dataset: PreparedWorkload | None) -> Cell:
    optimizer = str(options.optimizer)
    return Cell(
        system="",
        workload=workload,
        data="synthetic" if dataset is None else "real",
        data_dir=None if dataset is None else str(dataset.folder),
        data_digest=None if dataset is None else dataset.digest,
        scale=scale.name,
        device="cuda" if device == "cuda" else "cpu",
        optimizer=optimizer,
        lr=options.lr if options.lr is not None else _learning_rate(scale, optimizer, workload, dataset),
        eps=1e-8,
        max_rows=scale.max_rows if dataset is None else None,
        seed=options.seed,
        frequency_prefix=options.frequency_prefix,
        ranks=options.ranks,
        tf32=options.tf32,
        **{name: getattr(scale, name) for name in _OF_SCALE},
    )


def _adjusted(scale: Scale, options: Options, training_rows: int) -> tuple[Scale, list[str]]:
    """The scale with the options applied, and shrunk to one epoch. Returns also notes about the changes."""
    batch, dim = options.batch_size or scale.batch_size, options.embedding_dim or scale.embedding_dim
    scale = replace(scale, batch_size=batch, embedding_dim=dim)
    if options.steps is not None:
        scale = with_steps(scale, options.steps)
    scale, changes = fitted_to_epoch(scale, training_rows)
    if scale.batch_size % (options.ranks or 1):
        shared = f"{options.ranks} ranks cannot share a batch of {scale.batch_size}"
        raise BadOption(f"--ranks: {shared}: give another --batch-size{''.join(f' ({change})' for change in changes)}")
    return scale, changes


def with_steps(scale: Scale, steps: int) -> Scale:
    """The scale with `steps` training steps in all, an eighth of them counted."""
    counted = max(1, steps // 8)
    return replace(scale, train_steps=steps - counted, counted_steps=counted)


def fitted_to_epoch(scale: Scale, training_rows: int) -> tuple[Scale, list[str]]:
    """Shrink steps, then the batch, until no sample is trained on twice: repeated batches favour every cache.

    The warm-up before the turns is at most a quarter of the epoch. `suite.run.turns.groups` fits the turns to the rest.

    Raises:
        BadOption: even the smallest batch leaves no turn.
    """
    wanted, batch = scale.train_steps + scale.counted_steps, scale.batch_size
    # turns of the whole step and of the embedding step alone; on a drive those of all builds are of one stream
    shortest_turns = 2 * (scale.builds if scale.host_budgets else 1) * (LEAD_STEPS + 1)
    least = shortest_turns + 1
    while training_rows // batch < max(least, min(wanted, _LEAST_STEPS)) and batch > _LEAST_BATCH:
        batch = max(_LEAST_BATCH, batch // 2)
    steps = training_rows // batch
    if steps < least:
        raise BadOption(f"--data-dir: {training_rows} training rows are too few for {least} batches of {batch}")
    changes = []
    if batch != scale.batch_size:
        why = f"because there are {training_rows:,} training rows"
        changes.append(f"batch {batch} instead of {scale.batch_size}, {why}")
    if steps < wanted:
        changes.append(f"{steps} steps, one whole epoch, instead of {wanted}")
        scale = with_steps(scale, steps)
    warmup = min(scale.warmup_steps, max(1, steps // 4), steps - shortest_turns)
    if warmup < scale.warmup_steps:
        changes.append(f"{warmup} steps before the turns instead of {scale.warmup_steps}")
    return replace(scale, batch_size=batch, warmup_steps=warmup), changes
