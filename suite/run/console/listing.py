"""Output of `--list` and `--dry-run`, which run nothing."""

import importlib.util
import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from suite.records.record import Cell
from suite.records.scales import DISK_SCALES, SCALES
from suite.run.console.options import Device, choose_device
from suite.run.runner import Runner
from systems import registry, selection
from workloads.schema import DATASETS, SCHEMAS, DatasetSchema
from workloads.streams.tracks import TRACKS

if TYPE_CHECKING:
    from systems.contract import EmbeddingSystem

_WIDTH = 100
"""Maximum columns of text; a narrower terminal has fewer."""


def show_plan(console: Console, cells: Sequence[Cell], runner: Runner, *, notes: Sequence[str], as_json: bool) -> None:
    """Print the output of `--dry-run`: notes, then a line per cell, or a JSON object per cell."""
    if as_json:
        for cell in cells:
            console.print_json(json.dumps({"state": runner.state(cell), **cell.model_dump(mode="json")}), indent=None)
        return
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


class _Page:
    """Printer of headings, names and their descriptions, wrapped and indented."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wrapper = textwrap.TextWrapper(min(console.width, _WIDTH), break_long_words=False, break_on_hyphens=False)

    def heading(self, text: str) -> None:
        """Print an empty line and the title of a section."""
        self._console.print()
        self._print(text, "", "")

    def entry(self, name: str, *sentences: str) -> None:
        """Print a name on a line of its own, and each sentence below it."""
        self._print(name, "  ", "      ")
        for sentence in sentences:
            self._print(sentence, "      ", "      ")

    def _print(self, text: str, first: str, behind: str) -> None:
        self._wrapper.initial_indent, self._wrapper.subsequent_indent = first, behind
        self._console.print(self._wrapper.fill(text), markup=False, highlight=False, soft_wrap=True)


def show_choices(console: Console) -> None:
    """Print the output of `--list`: systems with their variants, workloads, tracks and scales."""
    page = _Page(console)
    _systems(page)
    _workloads(page)
    for title, scales in (("Scales", SCALES), ("Scales of --tier disk", DISK_SCALES)):
        page.heading(title)
        for scale in scales.values():
            rows = "published table sizes" if scale.max_rows is None else f"about {scale.max_rows:,} rows"
            budgets = ", ".join(f"{budget >> 20} MiB" for budget in scale.host_budgets)
            more = f", host budget {budgets}" if budgets else ""
            page.entry(f"{scale.name}: {rows}, dim {scale.embedding_dim}, batch {scale.batch_size}{more}")
    if importlib.util.find_spec("fbgemm_gpu") is None:
        page.heading("fbgemm-gpu is not installed: run make setup")


def _systems(page: _Page) -> None:
    more = ", ".join(entry for entry in selection.ALL if entry not in registry.SYSTEMS)
    tuned = ", ".join(entry for entry in selection.ALL_ON_CUDA if entry not in selection.ALL)
    page.heading(
        f"Systems. `all` is these and {more}, on a CUDA device also {tuned}; a parameter's first value is its default"
    )
    for name in registry.SYSTEMS:
        _system(page, name)
    page.entry("module:Class", "A system of your own, on Python's path: docs/adding-a-system.md")
    page.heading(
        "Approximate: fewer or coarser numbers; quality against bytes, never ranked by speed with the others. "
        f"`approximate` is {', '.join(selection.GROUPS['approximate'])}"
    )
    for name in registry.APPROXIMATE:
        _system(page, name)
    page.heading(
        "Rows on a drive: `--tier disk`, trained by a CPU at a --host-budget. There `all` is "
        f"{', '.join(selection.GROUPS['disk'])}"
    )
    for name in registry.DISK:
        _system(page, name)
    page.heading(f"Several devices: `--ranks`. There `all` is {', '.join(selection.ALL_ON_RANKS)}")
    page.heading("Controls, by name only")
    for name in registry.CONTROLS:
        _system(page, name)


def _system(page: _Page, name: str) -> None:
    variant = registry.Variant(name)
    try:
        found = registry.load(variant)
    except ImportError as error:
        page.entry(f"{name}: unavailable, {error}")
        return
    parameters = "; ".join(f"{key}={'|'.join(values)}" for key, values in found.variants.items())
    page.entry(f"{name} [{parameters}]" if parameters else name, found.about or _summary(found), _here(variant, found))


def _here(variant: registry.Variant, found: "type[EmbeddingSystem]") -> str:
    """Describe a system on this machine: placement and prior knowledge, read from a tiny instance built for it."""
    import torch
    from torchrec import EmbeddingBagConfig

    from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec, Verdict

    device, _ = choose_device(Device.AUTO)
    table = EmbeddingBagConfig(name="table", num_embeddings=64, embedding_dim=4, feature_names=["feature"])
    spec = SystemSpec(
        tables=(table,),
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
        device=torch.device(device),
        budget=CacheRatio(ratio=0.5),
        batch_lookups=64,
        frequencies={table.name: torch.ones(64, dtype=torch.int64)},
        parameters=registry.resolved_parameters(variant, found),
    )
    here = f"On this {'GPU' if device == 'cuda' else 'CPU'}:"
    answer = found.support(spec)
    if answer.verdict is not Verdict.YES:
        return f"{here} {answer.verdict}, {answer.reason}"
    try:
        system = found(spec)
        placement, knew = system.placement, system.prior_knowledge
    except (RuntimeError, OSError) as error:
        return f"{here} it cannot be built, {error}"
    again = placement.same_kernel_as
    same = "" if again is None else f", the very kernel of {again}, so it is not timed again"
    return f"{here} {placement.label}{same}" + (f"; it knows {knew}." if knew != "nothing" else ".")


def _workloads(page: _Page) -> None:
    page.heading("Workloads (all). Synthetic streams like these datasets, or with --data-dir the data themselves")
    for schema in DATASETS.values():
        page.entry(_workload(schema))
    page.heading("More synthetic workloads, by name")
    for schema in SCHEMAS.values():
        if schema.name not in DATASETS:
            page.entry(_workload(schema))
    page.heading("Tracks: how a synthetic stream changes with time, e.g. avazu@drift")
    for name, track in TRACKS.items():
        page.entry(name, _summary(track))
    page.heading("Your own data: prepare them, then name their directory with --data-dir")


def _workload(schema: DatasetSchema) -> str:
    most = max(schema.bag_lengths)
    ids = "one id" if most == 1 else f"up to {most} ids"
    return (
        f"{schema.name}: {schema.title}, {len(schema.categorical)} tables of {schema.table_rows:,} rows in full, {ids} "
        "per sample and table"
    )


def _summary(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
