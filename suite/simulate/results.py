"""The record of a simulation, with a row per policy and cache size; as files, and in a terminal of any width."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pandas as pd
from rich.console import Console

from suite.records.environment import Environment
from suite.records.measured import Model
from suite.records.store import write_atomically
from suite.simulate.models.registry import BOUNDS
from suite.tables.formatting import MISSING, amount
from suite.tables.sheet import csv_text
from suite.tables.terminal import print_line, print_table


class Stream(Model):
    """The replayed stream."""

    name: str
    workload: str | None
    """None: a trace file."""
    trace_file: str | None = None
    data_dir: str | None = None
    scale: str
    batch_size: int
    seed: int
    frequency_prefix: float
    """Share of the training split, from its beginning, that policies were given frequencies of."""
    tables: dict[str, int]
    """Rows by table."""
    rows: int
    batches: int
    """Batches of the stream."""


class Configuration(Model):
    """Options of the replay."""

    policies: tuple[str, ...]
    cache_ratios: tuple[float, ...]
    warmup_batches: int
    """Replayed before counting begins."""
    counted_batches: int
    optimizer: str
    embedding_dim: int


class SimulatedTraffic(Model):
    """Sums over the counted batches, defined as those of a trained system; see `systems.contract.Counters`."""

    batches: int
    lookups: int
    unique_ids: int
    unique_misses: int
    lookup_misses: int
    rows_fetched: int
    rows_written_back: int
    bytes_fetched: int
    bytes_written_back: int
    overflow_batches: int
    details: dict[str, int]
    """Counters that only this policy has, such as conflict misses."""

    @property
    def hit_rate(self) -> float:
        """1 - unique misses / unique ids, before anything is fetched."""
        return 1 - self.unique_misses / self.unique_ids if self.unique_ids else 1.0

    @property
    def bytes_moved(self) -> int:
        """Both ways."""
        return self.bytes_fetched + self.bytes_written_back


class LeastTraffic(Model):
    """Misses and bytes of Belady's rule over the same batches with as many slots: no policy has fewer misses."""

    policy: str
    """`belady`, or with `[bypass=on]` for a policy that may read rows past its cache too."""
    slots: int
    """Those of the policy, or those that the ratio gives if it uses fewer."""
    unique_misses: int
    bytes_moved: int


class Outcome(Model):
    """Result of one policy with so many slots."""

    slots: int = 0
    """The slots asked for, rounded to the geometry of the policy."""
    status: Literal["ok", "cannot_replay", "failed"] = "ok"
    """`cannot_replay`: the policy cannot run with so few slots. `failed`: it should have."""
    reason: str = ""
    traffic: SimulatedTraffic | None = None


class SimulatedRow(Outcome):
    """One policy at one cache size."""

    policy: str
    cache_ratio: float
    slots_asked: int
    """Slots that the ratio gives."""
    least: LeastTraffic | None = None
    """None: there is none to compare with, because the policy or the optimum cannot run with so many slots."""

    @property
    def of_least_misses(self) -> float | None:
        """Unique misses relative to the least."""
        return self._of_least("unique_misses")

    @property
    def of_least_bytes(self) -> float | None:
        """Bytes moved relative to the least."""
        return self._of_least("bytes_moved")

    def _of_least(self, count: str) -> float | None:
        """None also where nothing need be missed and something is."""
        if self.traffic is None or self.least is None:
            return None
        value, least = getattr(self.traffic, count), getattr(self.least, count)
        return value / least if least else 1.0 if value == 0 else None


class Simulation(Model):
    """All of a run; `simulation.json`."""

    schema_version: Literal[1] = 1
    stream: Stream
    configuration: Configuration
    environment: Environment
    complete: bool
    """Whether every planned row is there: Ctrl-C leaves those that were done."""
    rows: tuple[SimulatedRow, ...]


def write(simulation: Simulation, folder: Path) -> list[Path]:
    """Write `simulation.json` and `simulation.csv`. Raises `StoreError`: one cannot be written."""
    # As objects: a column of whole numbers in which one is missing stays one of whole numbers.
    frame = pd.DataFrame([_flat(row) for row in simulation.rows], dtype=object)
    files = {
        "simulation.json": json.dumps(simulation.model_dump(mode="json"), indent=2) + "\n",
        "simulation.csv": csv_text(frame),
    }
    for name, text in files.items():
        write_atomically(folder / name, text)
    return [folder / name for name in files]


def _flat(row: SimulatedRow) -> dict[str, object]:
    traffic = row.traffic
    counts: dict[str, object] = (
        dict.fromkeys(SimulatedTraffic.model_fields) if traffic is None else traffic.model_dump()
    )
    del counts["details"]
    return {
        **{name: getattr(row, name) for name in ("policy", "cache_ratio", "slots_asked", "slots", "status", "reason")},
        "hit_rate": None if traffic is None else traffic.hit_rate,
        "misses_of_least": row.of_least_misses,
        "bytes_of_least": row.of_least_bytes,
        **counts,
        "details": ";".join(f"{name}={count}" for name, count in traffic.details.items()) if traffic else "",
    }


DETAILED_SIZES = 3
"""Up to so many cache sizes are shown with counts and bytes; more with rates alone."""
_FREE_START = 0.25
"""Slots relative to the least misses from which on it matters what a cache starts with."""
_LEGEND = (
    "Hit rate: 1 - unique misses / unique ids, before anything is fetched. The least: what Belady's rule misses and "
    "moves, batch by batch, with as many slots over the same batches, past the cache where the policy may. MB: 1e6 "
    "bytes, optimizer state included. At: cached share of the rows."
)

Value = Callable[[SimulatedRow, SimulatedTraffic], str]


def _of_least(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"


_RATES: tuple[tuple[str, Value], ...] = (
    ("hit\nrate %", lambda _, traffic: f"{100 * traffic.hit_rate:.2f}"),
    ("misses, %\nof least", lambda row, _: _of_least(row.of_least_misses)),
    ("bytes, %\nof least", lambda row, _: _of_least(row.of_least_bytes)),
)
_COUNTS: tuple[tuple[str, Value], ...] = (
    ("misses\nper batch", lambda _, traffic: amount(traffic.unique_misses / traffic.batches)),
    ("MB in\nper batch", lambda _, traffic: amount(traffic.bytes_fetched / traffic.batches / 1e6)),
    ("MB out\nper batch", lambda _, traffic: amount(traffic.bytes_written_back / traffic.batches / 1e6)),
)


def show(simulation: Simulation, console: Console) -> None:
    """Print what was replayed, a line per policy, the sizes at which one could not run and why, and the legend."""
    stream, how = simulation.stream, simulation.configuration
    tables = f"{len(stream.tables)} {'table' if len(stream.tables) == 1 else 'tables'}"
    row = f"batch {stream.batch_size:,}, {how.optimizer}, dim {how.embedding_dim}"
    print_line(console, f"{stream.name}: {tables}, {stream.rows:,} rows, {row}")
    counted = f"{how.counted_batches:,} batches counted after {how.warmup_batches:,} of warm-up"
    print_line(console, f"{counted}, of {stream.batches:,}\n")
    columns = (*_RATES, *(_COUNTS if len(how.cache_ratios) <= DETAILED_SIZES else ()))
    found = {(row.policy, row.cache_ratio): row for row in simulation.rows}
    lines = [
        [policy, *(_cell(found.get((policy, ratio)), value) for _, value in columns for ratio in how.cache_ratios)]
        for policy in how.policies
    ]
    heads = [f"{head}\nat {_percent(ratio)} %" for head, _ in columns for ratio in how.cache_ratios]
    first_bound = [number for number, line in enumerate(lines) if line[0].split("[")[0] in BOUNDS][:1]
    print_table(console, ["policy", *heads], lines, sections=first_bound)
    for policy in how.policies:
        refused = [row for row in simulation.rows if row.policy == policy and row.status != "ok"]
        if refused:
            sizes, last = ", ".join(_percent(row.cache_ratio) for row in refused), refused[-1]
            verb, style = ("failed", "red") if last.status == "failed" else ("cannot run", "")
            print_line(console, f"{policy} {verb} at {sizes} %: {last.reason}", style=style)
    for note in _notes(simulation):
        print_line(console, note)
    if not simulation.complete:
        print_line(console, "Interrupted: what was done until then.", style="yellow")
    print_line(console, _LEGEND, style="dim")


def _cell(row: SimulatedRow | None, value: Value) -> str:
    return MISSING if row is None or row.traffic is None else value(row, row.traffic)


def _notes(simulation: Simulation) -> Iterator[str]:
    """Notes on sizes that a stream of so many batches says little about."""
    for ratio in simulation.configuration.cache_ratios:
        replayed = [row.traffic for row in simulation.rows if row.cache_ratio == ratio and row.traffic is not None]
        most = max((traffic.overflow_batches for traffic in replayed), default=0)
        if most:
            yield f"At {_percent(ratio)} %, {most:,} batches have more distinct rows than there are slots."
    short = [row for row in simulation.rows if row.least and row.least.slots > _FREE_START * row.least.unique_misses]
    if short:
        first, counted = min(row.cache_ratio for row in short), simulation.configuration.counted_batches
        yield (
            f"From {_percent(first)} % on, {counted:,} batches are few: the least starts with the best rows free of "
            "charge, and a cache that starts empty still fills. Count more with --batches or --epoch."
        )


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g}"
