"""Coverage of the 95 % interval of equal systems, and the losses that two runs can show: simulated.

    python results/turns/intervals.py --out results/turns/intervals.json

Turns are simulated as they were on a shared machine with 2 cores: lognormal noise, half of whose variance hits all
systems of a turn alike; now and then a turn of one system that takes 1.5 to 4 times as long; a part that stays for a
build; and a part that stays for a run, which builds of one process have in common. Seven systems are equally fast, the
last of them with twice the noise. An interval misses if it does not contain 1.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.records.environment import capture
from suite.records.scales import FULL, SMALL
from suite.records.store import write_json
from suite.tables.statistics import Estimate, ratio_of, samples_of

SYSTEMS = 7
NOISIER = 2.0
"""The last system's noise relative to the others'."""
BASE = {"rounds": 1, "builds": SMALL.builds, "turns": SMALL.turns, "turn_sd": 0.12, "build_sd": 0.0075, "run_sd": 0.0}
CONTESTS: dict[str, dict[str, Any]] = {
    "small, within one run": BASE,
    "small, within one run, builds differ more": BASE | {"build_sd": 0.02},
    "small, one run beside its repeat": BASE | {"run_sd": 0.015},
    "small, 3 rounds": BASE | {"rounds": 3, "run_sd": 0.015},
    "small, 5 rounds": BASE | {"rounds": 5, "run_sd": 0.015},
    "small, 3 rounds, runs differ more": BASE | {"rounds": 3, "run_sd": 0.03},
    "full, 3 rounds": BASE
    | {"rounds": 3, "builds": FULL.builds, "turns": FULL.turns, "turn_sd": 0.02, "run_sd": 0.015},
}
SPIKES, SPIKE = 0.03, (1.5, 4.0)
"""Share of a system's turns that take longer, and how many times as long."""
RUNS = [(builds, spread) for builds in (SMALL.builds, 5) for spread in (0.01, 0.02, 0.05)]
"""Pairs of runs: builds or rounds of each, and the standard deviation of their log ratios."""


def contest(
    draws: np.random.Generator,
    *,
    rounds: int,
    builds: int,
    turns: int,
    turn_sd: float,
    build_sd: float,
    run_sd: float,
) -> np.ndarray:
    """Log times of equal systems, `[systems, rounds, builds, turns]`."""
    shape = (SYSTEMS, rounds, builds, turns)
    scale = np.ones((SYSTEMS, 1, 1, 1))
    scale[-1] = NOISIER
    shared, own = (turn_sd * math.sqrt(0.5) * draws.normal(size=size) for size in ((1, *shape[1:]), shape))
    spikes = (draws.random(shape) < SPIKES) * np.log(draws.uniform(*SPIKE, shape))
    lasting = build_sd * draws.normal(size=(*shape[:3], 1)) + run_sd * draws.normal(size=(*shape[:2], 1, 1))
    return shared + scale * own + spikes + scale * lasting


def coverage(draws: np.random.Generator, setting: dict[str, Any], contests: int) -> dict[str, Any]:
    """Shares of intervals that miss, and their half-widths, of the even systems and of the noisier one."""
    missed, halves = [], []
    for _ in range(contests):
        times = contest(draws, **setting)
        logs = np.median(times[:1] - times, axis=3)[1:]
        found = [
            ratio_of(samples_of({(str(run), build): float(log) for (run, build), log in np.ndenumerate(of_system)}))
            for of_system in logs
        ]
        missed.append([not one.spans_one for one in found])
        halves.append([_half(one) for one in found])
    return setting | {
        "even_missed": round(float(np.mean([row[:-1] for row in missed])), 4),
        "noisier_missed": round(float(np.mean([row[-1] for row in missed])), 4),
        "even_half_width": round(float(np.median([row[:-1] for row in halves])), 4),
        "noisier_half_width": round(float(np.median([row[-1] for row in halves])), 4),
    }


def two_runs(draws: np.random.Generator, builds: int, spread: float, pairs: int) -> dict[str, float]:
    """Share of equal runs that seem to differ, and the smallest loss that is found 9 times in 10."""
    found = [_pair(draws, builds, spread, spread) for _ in range(pairs)]
    uneven = [_pair(draws, builds, spread, 5 * spread) for _ in range(pairs)]
    # A loss is found where the interval's upper end, moved by it, lies below 1.
    loss = 1 - math.exp(-float(np.quantile([math.log(one.high or 1) for one in found], 0.9)))
    return {
        "builds": builds,
        "spread": spread,
        "flagged": round(float(np.mean([not one.spans_one for one in found])), 4),
        "flagged_where_one_spreads_5_times_as_much": round(float(np.mean([not one.spans_one for one in uneven])), 4),
        "loss_found_9_times_in_10": round(loss, 4),
    }


def _pair(draws: np.random.Generator, builds: int, spread: float, other: float) -> Estimate:
    return ratio_of(draws.normal(0, spread, builds).tolist(), draws.normal(0, other, builds).tolist())


def _half(found: Estimate) -> float:
    return ((found.high or math.inf) - (found.low or 0)) / 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, and leave a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contests", type=int, default=2_000, help="simulated for every setting")
    parser.add_argument("--pairs", type=int, default=10_000, help="of runs, for every spread")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    draws = np.random.default_rng(20261122)
    record = {
        "environment": capture().model_dump(mode="json"),
        "simulated": {"contests": asked.contests, "pairs_of_runs": asked.pairs, "systems": SYSTEMS},
        "contests": {name: coverage(draws, setting, asked.contests) for name, setting in CONTESTS.items()},
        "two_runs": [two_runs(draws, builds, spread, asked.pairs) for builds, spread in RUNS],
    }
    write_json(asked.out, record)


if __name__ == "__main__":
    main()
