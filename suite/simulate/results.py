"""The record of a simulation: its configuration, its stream, and a row per policy and cache size."""

import json
from pathlib import Path
from typing import Literal, Self

import pandas as pd

from suite.records.environment import Environment
from suite.records.measured import Model
from suite.records.store import write_atomically
from suite.simulate.models.model import CacheModel, RowBytes, Tally
from suite.tables.sheet import csv_text


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
    """That the stream has."""


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

    @classmethod
    def of(cls, tally: Tally, model: CacheModel, row: RowBytes) -> Self:
        """The tally of a model, with bytes by the size of a row."""
        fetched, back = model.bytes_moved(tally, row)
        return cls(
            **{name: count for name, count in vars(tally).items() if name in cls.model_fields},
            bytes_fetched=fetched,
            bytes_written_back=back,
        )

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
    replay_s: float | None = None
    ids_per_s: float | None = None
    """Speed of the simulator, on the machine of the record; all else is the same on every machine. A first replay
    compiles its loops or loads them, so that of a short one says nothing."""


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
        "ids_per_s": row.ids_per_s,
    }
