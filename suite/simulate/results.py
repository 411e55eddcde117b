"""What a simulation leaves behind: its configuration, its stream, and a row per policy and cache size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import pandas as pd

from suite.records.environment import Environment
from suite.records.model import Model
from suite.records.store import write_atomically
from suite.simulate.sweep import Outcome, SimulatedCell
from suite.simulate.traces.trace import Trace
from systems.registry import Variant

SCHEMA_VERSION: Final = 1


class Stream(Model):
    """What was replayed."""

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
    """That the stream has."""


class Configuration(Model):
    """How it was replayed."""

    policies: tuple[str, ...]
    cache_ratios: tuple[float, ...]
    warmup_batches: int
    """Replayed before counting begins."""
    counted_batches: int
    optimizer: str
    embedding_dim: int


class Traffic(Model):
    """Sums over the counted batches, defined as those of a trained system; see `systems.contract.Counters`."""

    batches: int
    lookups: int
    unique_ids: int
    unique_misses: int
    lookup_misses: int | None
    """None: the policy does not say."""
    rows_fetched: int
    rows_written_back: int
    bytes_fetched: int
    bytes_written_back: int
    overflow_batches: int
    details: dict[str, int]
    """What only this policy has, such as conflict misses."""
    per_table: dict[str, tuple[int, int]] | None = None
    """Unique ids and unique misses by table, where asked for."""

    @property
    def hit_rate(self) -> float:
        """1 - unique misses / unique ids, before anything is fetched."""
        return 1 - self.unique_misses / self.unique_ids if self.unique_ids else 1.0

    @property
    def bytes_moved(self) -> int:
        """Both ways."""
        return self.bytes_fetched + self.bytes_written_back


class Least(Model):
    """What Belady's rule misses and moves over the same batches with as many slots: nothing can do with less."""

    policy: str
    """`belady`, or with `[bypass=on]` for a policy that may read rows past its cache too."""
    slots: int
    """Those of the policy, or those that the ratio gives if it uses fewer."""
    unique_misses: int
    bytes_moved: int


class Row(Model):
    """One policy at one cache size."""

    policy: str
    cache_ratio: float
    slots_asked: int
    """What the ratio gives."""
    slots: int
    """What the policy's geometry makes of that."""
    status: Literal["ok", "cannot_replay", "failed"]
    reason: str = ""
    traffic: Traffic | None = None
    least: Least | None = None
    """None: there is none to compare with, because the policy or the optimum cannot run with so many slots."""
    replay_s: float | None = None
    ids_per_s: float | None = None
    """Speed of the simulator, on the machine of the record; all else is the same on every machine. A first replay
    compiles its loops or loads them, so that of a short one says nothing."""

    @property
    def of_least_misses(self) -> float | None:
        """Unique misses relative to the least."""
        if self.traffic is None or self.least is None:
            return None
        return _ratio(self.traffic.unique_misses, self.least.unique_misses)

    @property
    def of_least_bytes(self) -> float | None:
        """Bytes moved relative to the least."""
        if self.traffic is None or self.least is None:
            return None
        return _ratio(self.traffic.bytes_moved, self.least.bytes_moved)


class Simulation(Model):
    """All of a run; `simulation.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    stream: Stream
    configuration: Configuration
    environment: Environment
    complete: bool
    """Whether every planned row is there: Ctrl-C leaves those that were done."""
    rows: tuple[Row, ...]


def row_of(
    outcome: Outcome,
    *,
    ratio: float,
    trace: Trace,
    found: Mapping[SimulatedCell, Outcome],
    per_table: bool = False,
) -> Row:
    """A row of results.

    Args:
        outcome: What became of the cell.
        ratio: That gave its slots.
        trace: What it replayed.
        found: All outcomes, those of the optimum among them; see `bound_of`.
        per_table: Keep counts by table.
    """
    tally = outcome.tally
    asked = outcome.cell.slots
    cell = bound_of(outcome, trace.rows)
    bound = None if cell is None else found.get(cell)
    fetched, back = outcome.bytes_moved
    return Row(
        policy=str(outcome.cell.policy),
        cache_ratio=ratio,
        slots_asked=asked,
        slots=outcome.slots,
        status=outcome.status,
        reason=outcome.reason,
        traffic=None
        if tally is None
        else Traffic(
            **{name: count for name, count in vars(tally).items() if name not in ("by_table", "over_time")},
            bytes_fetched=fetched,
            bytes_written_back=back,
            per_table={
                name: (int(unique), int(missed))
                for (name, _), (unique, missed) in zip(trace.tables, tally.by_table, strict=True)
            }
            if per_table
            else None,
        ),
        least=None
        if bound is None or bound.tally is None or tally is None
        else Least(
            policy=str(bound.cell.policy),
            slots=bound.cell.slots,
            unique_misses=bound.tally.unique_misses,
            bytes_moved=sum(bound.bytes_moved),
        ),
        replay_s=outcome.replay_s if tally is not None else None,
        ids_per_s=outcome.replayed_lookups / outcome.replay_s if outcome.replay_s else None,
    )


def bound_of(outcome: Outcome, rows: int) -> SimulatedCell | None:
    """The optimum that a policy is compared with; None: it has no use for slots, or did not run.

    It has as many slots, to which a geometry may have rounded up what was asked for, and may read rows past the cache
    if the policy may.
    """
    if outcome.tally is None or outcome.cell.policy.name == "compulsory":
        return None
    policy = Variant("belady", (("bypass", "on"),)) if outcome.bypasses else Variant("belady")
    if outcome.cell.policy.name == "belady":
        policy = outcome.cell.policy
    return SimulatedCell(policy=policy, slots=min(rows, max(outcome.cell.slots, outcome.slots)))


def write(simulation: Simulation, folder: Path) -> list[Path]:
    """Write `simulation.json`, `simulation.csv` and, with counts by table, `simulation_tables.csv`.

    Raises:
        StoreError: one cannot be written.
    """
    files = {
        "simulation.json": json.dumps(simulation.model_dump(mode="json"), indent=2) + "\n",
        "simulation.csv": _csv([_flat(row) for row in simulation.rows]),
    }
    by_table = [line for row in simulation.rows for line in _by_table(row)]
    if by_table:
        files["simulation_tables.csv"] = _csv(by_table)
    for name, text in files.items():
        write_atomically(folder / name, text)
    return [folder / name for name in files]


def _flat(row: Row) -> dict[str, object]:
    found = row.traffic
    counted = {} if found is None else found.model_dump(exclude={"details", "per_table"})
    return {
        "policy": row.policy,
        "cache_ratio": row.cache_ratio,
        "slots_asked": row.slots_asked,
        "slots": row.slots,
        "status": row.status,
        "reason": row.reason,
        "hit_rate": None if found is None else found.hit_rate,
        "misses_of_least": row.of_least_misses,
        "bytes_of_least": row.of_least_bytes,
        **{name: counted.get(name) for name in Traffic.model_fields if name not in ("details", "per_table")},
        "details": ";".join(f"{name}={count}" for name, count in found.details.items()) if found else "",
        "ids_per_s": row.ids_per_s,
    }


def _by_table(row: Row) -> list[dict[str, object]]:
    if row.traffic is None or row.traffic.per_table is None:
        return []
    where = {"policy": row.policy, "cache_ratio": row.cache_ratio, "slots": row.slots}
    return [
        {**where, "table": name, "unique_ids": unique, "unique_misses": missed}
        for name, (unique, missed) in row.traffic.per_table.items()
    ]


def _csv(lines: Sequence[Mapping[str, object]]) -> str:
    # As objects: a column of whole numbers in which one is missing stays one of whole numbers.
    return str(pd.DataFrame(lines, dtype=object).to_csv(index=False, lineterminator="\n"))


def _ratio(value: int, least: int) -> float | None:
    """None where nothing need be missed and something is."""
    if least == 0:
        return 1.0 if value == 0 else None
    return value / least
