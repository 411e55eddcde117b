"""What the tests of the comparison share: runs on disk, the second measured a day after the first.

Speeds are samples per second beside the baseline's, which is the same in all of them: ratios compare as speeds do.
"""

from pathlib import Path

import numpy as np
from scipy import stats

from suite.compare.compare import Comparison, compare, read_run
from suite.records.record import Record
from suite.records.store import RecordStore
from tests.unit.suite.fabricate import BASELINE, environment, rounds

NEXT_DAY = "2026-11-02T12:00:00+00:00"
STEADY = [BASELINE, 1.01 * BASELINE, 0.99 * BASELINE]
OTHER_MACHINE = environment(machine="othermachine", cpu="Intel Xeon 6980P").model_copy(update={"gpu": "NVIDIA H200"})


def later(system: str, speeds: list[float], **changes: object) -> list[Record]:
    """Rounds of a second run."""
    return rounds(system, speeds, **{"started_at": NEXT_DAY, **changes})


def scaled(factor: float, speeds: list[float] = STEADY) -> list[float]:
    return [factor * speed for speed in speeds]


def run_at(root: Path, records: list[Record]) -> Path:
    """A results directory that holds these records."""
    store = RecordStore(root)
    for record in records:
        store.write(record)
    return root


def compared(tmp_path: Path, before: list[Record], after: list[Record]) -> Comparison:
    runs = [read_run(name, run_at(tmp_path / name, records)) for name, records in (("RUN_A", before), ("RUN_B", after))]
    return compare(runs[0], runs[1])


def welch_interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Ratio ours / theirs of rounds' speeds with its 95 % interval, by Welch's and Satterthwaite's formulas."""
    a, b = np.log(ours), np.log(theirs)
    errors = np.array([a.var(ddof=1) / a.size, b.var(ddof=1) / b.size])
    degrees = errors.sum() ** 2 / (errors**2 / np.array([a.size - 1, b.size - 1])).sum()
    half = stats.t.ppf(0.975, degrees) * np.sqrt(errors.sum())
    middle = a.mean() - b.mean()
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))
