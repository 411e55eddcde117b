"""Output of `--list` and `--dry-run`, which run nothing."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from suite.records.record import Cell
from suite.records.scales import DISK_SCALES, SCALES, Scale
from suite.run.runner import Runner
from systems import registry
from workloads.schema import DATASETS, SCHEMAS, DatasetSchema
from workloads.streams.tracks import TRACKS


def show_plan(console: Console, cells: Sequence[Cell], runner: Runner, *, notes: Sequence[str]) -> None:
    """Print the output of `--dry-run`: notes, then a line per cell."""
    for note in notes:
        console.print(note, markup=False, highlight=False)
    for cell in cells:
        size = cell.host_budget_bytes or cell.device_budget_bytes
        budget = f"{size:,} B" if size else f"ratio {cell.cache_ratio}"
        turns = f", then {cell.builds} x {cell.turns} turns" if cell.ranks is None else f" on {cell.ranks} ranks"
        console.print(
            f"{runner.state(cell):9} {cell.label}: {cell.data}, {cell.scale} on {cell.device}"
            f"{' in TF32' if cell.tf32 else ''}, {cell.optimizer} "
            f"lr {cell.lr:g}, batch {cell.batch_size}, dim {cell.embedding_dim}, {budget}, {cell.steps} steps{turns}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def show_choices(console: Console) -> None:
    """Print the output of `--list`: systems with their variants, workloads, tracks and scales."""

    def section(heading: str, entries: Iterable[tuple[str, str]] = ()) -> None:
        console.print(f"\n{heading}", markup=False, highlight=False)
        for name, sentence in entries:
            console.print(Padding(Text(name), (0, 0, 0, 2)))
            console.print(Padding(Text(sentence), (0, 0, 0, 6)))

    more = ", ".join(entry for entry in registry.ALL if entry not in registry.SYSTEMS)
    tuned = ", ".join(entry for entry in registry.ALL_ON_CUDA if entry not in registry.ALL)
    approximate, on_drive = (", ".join(registry.GROUPS[name]) for name in ("approximate", "disk"))
    mine = ("module:Class", "A system of your own, on Python's path: docs/adding-a-system.md")
    section(
        f"Systems; `all` is these and {more}, on a CUDA device also {tuned}; a parameter's first value is its default",
        [*map(_system, registry.SYSTEMS), mine],
    )
    section(
        "Approximate: fewer or coarser numbers; quality against bytes, never ranked by speed with the others. "
        f"`approximate` is {approximate}",
        map(_system, registry.APPROXIMATE),
    )
    section(
        f"Rows on a drive: `--tier disk`, trained by a CPU at a --host-budget. There `all` is {on_drive}",
        map(_system, registry.DISK),
    )
    section(f"Several devices: `--ranks`. There `all` is {', '.join(registry.ALL_ON_RANKS)}")
    section("Controls, by name only", map(_system, registry.CONTROLS))
    section(
        "Workloads (all). Synthetic streams like these datasets, or with --data-dir the data themselves",
        map(_workload, DATASETS.values()),
    )
    others = [schema for schema in SCHEMAS.values() if schema.name not in DATASETS]
    section("More synthetic workloads, by name", map(_workload, others))
    section(
        "Tracks: how a synthetic stream changes with time, e.g. avazu@drift",
        ((name, str(track.__doc__).splitlines()[0]) for name, track in TRACKS.items()),
    )
    section("Scales", map(_scale, SCALES.values()))
    section("Scales of --tier disk", map(_scale, DISK_SCALES.values()))


def _system(name: str) -> tuple[str, str]:
    try:
        found = registry.load(registry.Variant(name))
    except ImportError as error:
        return name, f"unavailable: {error}"
    parameters = "; ".join(f"{key}={'|'.join(values)}" for key, values in found.variants.items())
    return f"{name} [{parameters}]" if parameters else name, found.about


def _workload(schema: DatasetSchema) -> tuple[str, str]:
    most = max(schema.bag_lengths)
    ids = "one id" if most == 1 else f"up to {most} ids"
    tables = f"{len(schema.categorical)} tables of {schema.table_rows:,} rows in full"
    return schema.name, f"{schema.title}, {tables}, {ids} per sample and table"


def _scale(scale: Scale) -> tuple[str, str]:
    rows = "published table sizes" if scale.max_rows is None else f"about {scale.max_rows:,} rows"
    budgets = ", ".join(f"{budget >> 20} MiB" for budget in scale.host_budgets)
    more = f", host budget {budgets}" if budgets else ""
    return scale.name, f"{rows}, dim {scale.embedding_dim}, batch {scale.batch_size}{more}"
