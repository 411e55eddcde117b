"""Lines that a run shows while it lasts, and output of `--list` and `--dry-run`, which run nothing."""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from suite.records.command_line import ShownConsole, only_shown
from suite.records.record import Cell, Status
from suite.records.scales import DISK_SCALES, SCALES, Scale
from suite.run.runner import Runner
from suite.run.worker import Progress
from systems import registry
from workloads.schema import DATASETS, SCHEMAS, DatasetSchema
from workloads.streams.tracks import TRACKS

PROGRESS_EVERY_S = 10.0
"""Minimum seconds between progress lines."""


class Display:
    """Shows the events of a run in order, as lines; the run continues if the output is closed.

    Args:
        stream: Where the lines go; None: standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = ShownConsole(file=stream, highlight=False, soft_wrap=True)
        self._place = ""
        self._run_start = self._start = self._last_line = time.monotonic()

    def run_started(self, cells: int, done_already: int) -> None:
        """A run of `cells` planned cells begins; `done_already` of them have records and are not run again."""
        self._run_start = time.monotonic()
        self._show(f"{cells} cells" + (f", {done_already} of them done already" if done_already else ""))

    def started(self, place: str) -> None:
        """A cell, or the timing of systems in alternation, begins; `place` stands before all that is shown of it."""
        self._place, self._start = place, time.monotonic()
        self._show(f"{place}: started")

    def progress(self, progress: Progress) -> None:
        """Progress of the current cell, or of the timing; `steps` is 0 if it is unknown."""
        if time.monotonic() - self._last_line >= PROGRESS_EVERY_S:
            count = f" {progress.step}/{progress.steps}" if progress.steps else ""
            elapsed = clock_text(time.monotonic() - self._run_start)
            self._show(f"{self._place}: {progress.phase}{count} (elapsed {elapsed})")

    def cell_finished(self, status: Status, *, wall_s: float, summary: str, reason: str = "") -> None:
        """The current cell ended; `summary` has its main figures, `reason` explains a status other than `ok`."""
        found, why = " ".join(summary.split()), " ".join(reason.split())
        line = f"{self._place}: {status} in {clock_text(wall_s)}"
        line += (f", {found}" if found else "") + (f"\n    {why}" if why else "")
        self._show(line, "green" if status is Status.OK else "yellow" if status.good else "red")

    def turns_finished(self) -> None:
        """The timing has ended: every system has finished its turns, or failed."""
        self._show(f"{self._place}: done in {clock_text(time.monotonic() - self._start)}", "green")

    def run_finished(self) -> None:
        """The run has ended."""
        self._show(f"finished in {clock_text(time.monotonic() - self._run_start)}")

    def note(self, text: str) -> None:
        """Show information."""
        self._show(f"note: {text}", "dim")

    def warn(self, text: str) -> None:
        """Show a warning; the text names the remedy."""
        self._show(f"warning: {text}", "yellow")

    def _show(self, line: str, style: str = "") -> None:
        self._last_line = time.monotonic()
        with only_shown():
            self._console.print(Text(line, style=style))


def clock_text(seconds: float) -> str:
    """Seconds as `0:12:05`."""
    return str(timedelta(seconds=round(seconds)))


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
        f"Systems; `all` is these and {more}, on a CUDA device also {tuned}; `distinct`, the default, leaves out what "
        f"on a CPU runs another's kernel: {', '.join(registry.REPEATS_ON_CPU)}. "
        "A parameter's first value is its default",
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
