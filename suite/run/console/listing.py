"""What `--list` and `--dry-run` show, without running anything."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import fields

from rich.console import Console

from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.run.runner import Runner
from systems import registry
from workloads.schema import DATASETS, SCHEMAS
from workloads.streams.tracks import TRACKS

Line = Callable[[str], None]


def show_plan(console: Console, cells: Sequence[Cell], runner: Runner, *, notes: Sequence[str], as_json: bool) -> None:
    """What `--dry-run` shows: notes, then a line per cell, or an object per cell as JSON."""
    if as_json:
        for cell in cells:
            console.print_json(json.dumps({"state": runner.state(cell), **cell.model_dump(mode="json")}), indent=None)
        return
    for note in notes:
        console.print(note, markup=False, highlight=False)
    for cell in cells:
        budget = f"{cell.device_budget_bytes:,} B" if cell.device_budget_bytes else f"ratio {cell.cache_ratio}"
        console.print(
            f"{runner.state(cell):9} {cell.label}: {cell.data}, {cell.scale} on {cell.device}, {cell.optimizer} "
            f"lr {cell.lr:g}, batch {cell.batch_size}, dim {cell.embedding_dim}, {budget}, {cell.steps} steps",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def show_choices(console: Console) -> None:
    """What `--list` shows: systems with their variants, workloads, tracks and scales."""

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    _systems(line)
    _workloads(line)
    line("Scales:")
    for scale in SCALES.values():
        rows = "published table sizes" if scale.max_rows is None else f"about {scale.max_rows:,} rows"
        line(f"  {scale.name}: {rows}, dim {scale.embedding_dim}, batch {scale.batch_size}")
    if importlib.util.find_spec("fbgemm_gpu") is None:
        line("fbgemm-gpu is not installed: run make setup")


def _systems(line: Line) -> None:
    for names, title in (
        (registry.SYSTEMS, "Systems (all), the first value of a parameter being the default:"),
        (registry.CONTROLS, "Controls (by name only):"),
    ):
        line(title)
        for name in names:
            try:
                found = registry.load(registry.Variant(name))
            except ImportError as error:
                line(f"  {name}: unavailable, {error}")
                continue
            variants = "; ".join(f"{key}={'|'.join(values)}" for key, values in found.variants.items())
            line(f"  {name}{f' [{variants}]' if variants else ''}: {_summary(found)}")
    line("Your own system: module:Class")


def _workloads(line: Line) -> None:
    for title, schemas in (
        ("Workloads (all):", DATASETS.values()),
        ("More synthetic workloads, by name:", [s for s in SCHEMAS.values() if s.name not in DATASETS]),
    ):
        line(title)
        for schema in schemas:
            tables = f"{len(schema.categorical)} tables, {schema.table_rows:,} rows in full"
            line(f"  {schema.name}: {schema.title}, {tables}")
    line("Tracks of synthetic workloads, e.g. avazu@drift, with their parameters and defaults:")
    for name, track in TRACKS.items():
        line(f"  {name} [{', '.join(f'{field.name}={field.default}' for field in fields(track))}]: {_summary(track)}")
    line("Your own data: prepare them, then name their directory with --data-dir")


def _summary(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
