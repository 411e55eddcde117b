"""Whether our micro-benchmarks are still as fast beside what they are measured against as when limits were made.

    python results/microbench/ratio_gate.py benchmark.json
    python results/microbench/ratio_gate.py benchmark.json --limits my_limits.json
    python results/microbench/ratio_gate.py run1.json run2.json run3.json --write

Reads what `pytest tests/bench --benchmark-enable --benchmark-only --benchmark-json FILE` wrote. A time does not travel
between machines, a ratio of two sides that took turns in one run travels better: of every benchmark of ours, the median
over its rounds of its time by that of the other side in the round before. Of several runs the worst counts.

`--write` makes limits anew from the runs given: the worst ratio seen, by 1.25. Each stands with the ratios that it was
derived from, and with what was compared: a run of other sizes, threads or devices is refused, not judged.

Exit codes: 0, all within their limits; 1, one is beyond; 2, the files cannot be judged, and the message says why.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMITS = Path(__file__).resolve().with_name("limits.json")
HEADROOM = 1.25
BEYOND = 1
UNUSABLE = 2
_MEASURE = "make microbench"
_COMPARED = ("beside", "unit", "units", "threads", "device")


class CannotJudge(Exception):
    """A file of benchmarks or limits that says too little; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What a ratio is of. Only ratios of equals are judged by a limit."""

    beside: str
    unit: str
    units: int
    threads: int
    device: str

    def differences(self, other: Compared) -> str:
        """What differs, in words; empty where nothing does."""
        mine, others = asdict(self), asdict(other)
        return ", ".join(f"{key} {others[key]} instead of {mine[key]}" for key in mine if mine[key] != others[key])


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One benchmark of ours in one run.

    Attributes:
        seconds, beside_seconds: Medians of a round of ours, and of one of the other side.
        ratio: Median over the pairs of rounds.
    """

    name: str
    compared: Compared
    seconds: float
    beside_seconds: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a ratio may be, and the ratios that were seen when that was decided."""

    compared: Compared
    limit: float
    seen: tuple[float, ...]


def read_run(path: Path) -> dict[str, Ratio]:
    """The ratios of ours in a file of pytest-benchmark's, by name.

    Raises:
        CannotJudge: the file is not one, names a benchmark twice, or lacks the other side of one of ours.
    """
    content = _json(path, remedy=f"write it with {_MEASURE}")
    benchmarks = content.get("benchmarks") if isinstance(content, dict) else None
    if not isinstance(benchmarks, list) or not benchmarks:
        raise CannotJudge(f"{path}: no benchmarks in it: write it with {_MEASURE}, or pytest's --benchmark-json")
    found: dict[str, Mapping[str, Any]] = {}
    for benchmark in benchmarks:
        name = _field(path, "a benchmark", benchmark, "name")
        if name in found:
            raise CannotJudge(f"{path}: two benchmarks are called {name}: rename one, a limit is found by its name")
        found[name] = _field(path, name, benchmark, "extra_info")
        _field(path, name, found[name], "role")
    ours = {b["name"]: b for b in benchmarks if found[b["name"]]["role"] == "ours"}
    if not ours:
        raise CannotJudge(f"{path}: no benchmark has the role 'ours': run all of tests/bench, {_MEASURE}")
    return {name: _ratio(path, benchmark, found) for name, benchmark in ours.items()}


def _ratio(path: Path, benchmark: Mapping[str, Any], run: Mapping[str, Mapping[str, Any]]) -> Ratio:
    name, info = benchmark["name"], benchmark["extra_info"]
    if "beside" not in info:
        raise CannotJudge(f"{path}: {name} has no other side: give `beside` to Turns.measure in its test")
    other = _field(path, f"{name}, beside", info["beside"], "name")
    if other not in run:
        raise CannotJudge(f"{path}: {name} is measured beside {other}, which is not in the run: leave out -k and -m")
    if run[other]["role"] not in ("peer", "bound"):
        raise CannotJudge(f"{path}: {name} is measured beside {other}, which is neither a peer nor a bound")
    units = {side: _field(path, side, run[side], "units") for side in (name, other)}
    if units[name] != units[other]:
        raise CannotJudge(f"{path}: {name} works on {units[name]}, {other} on {units[other]}: give both the same work")
    own = _numbers(path, name, _field(path, name, _field(path, name, benchmark, "stats"), "data"))
    beside = _numbers(path, f"{name}, beside", _field(path, f"{name}, beside", info["beside"], "seconds"))
    if len(own) != len(beside):
        raise CannotJudge(f"{path}: {name} has {len(own)} rounds and {other} beside it {len(beside)}: measure again")
    compared = Compared(
        beside=other, **{key: _field(path, name, info, key) for key in ("unit", "units", "threads", "device")}
    )
    return Ratio(
        name=name,
        compared=compared,
        seconds=statistics.median(own),
        beside_seconds=statistics.median(beside),
        ratio=statistics.median(mine / others for mine, others in zip(own, beside, strict=True)),
    )


def read_limits(path: Path) -> dict[str, Limit]:
    """Limits by benchmark.

    Raises:
        CannotJudge: there are none, or the file is damaged.
    """
    content = _json(path, remedy=f"make limits: {_command(path)}")
    limits = _field(path, "the file", content, "limits")
    if not isinstance(limits, dict):
        raise CannotJudge(f"{path}: limits are no object: make them anew, {_command(path)}")
    found = {}
    for name, entry in limits.items():
        compared = Compared(**{key: _field(path, name, entry, key) for key in _COMPARED})
        limit = _numbers(path, name, [_field(path, name, entry, "limit")])[0]
        seen = _numbers(path, name, _field(path, name, entry, "seen"))
        found[name] = Limit(compared=compared, limit=limit, seen=tuple(seen))
    return found


def make_limits(runs: Sequence[Mapping[str, Ratio]]) -> dict[str, Limit]:
    """Limits of what runs have seen: the worst of each, by `HEADROOM`.

    Raises:
        CannotJudge: the runs are not of the same benchmarks.
    """
    first = runs[0]
    limits = {}
    for number, run in enumerate(runs[1:], start=2):
        odd = sorted(run.keys() ^ first.keys())
        odd += [name for name in first.keys() & run.keys() if run[name].compared != first[name].compared]
        if odd:
            raise CannotJudge(f"run {number} and run 1 differ in {', '.join(odd)}: measure all of them in the same way")
    for name, ratio in first.items():
        seen = tuple(round(run[name].ratio, 4) for run in runs)
        limits[name] = Limit(compared=ratio.compared, limit=round(max(seen) * HEADROOM, 3), seen=seen)
    return limits


def check_up_to_date(limits: Mapping[str, Limit], run: Mapping[str, Ratio], *, where: Path) -> None:
    """Demand one limit for every benchmark of ours, of the same work.

    Raises:
        CannotJudge: names every one that has none or is none, and how to make limits.
    """
    problems = [f"{name} has no limit" for name in run if name not in limits]
    problems += [f"the limit of {name} is of no benchmark" for name in limits if name not in run]
    for name, limit in limits.items():
        differences = limit.compared.differences(run[name].compared) if name in run else ""
        if differences:
            problems.append(f"{name} has {differences}")
    if problems:
        raise CannotJudge(
            f"{where} is of other benchmarks than this run: {'; '.join(problems)}. Run all of tests/bench with the "
            f"sizes, threads and device of the limits ({_MEASURE}), or make limits anew of several runs: "
            f"{_command(where)}"
        )


def origin_of(path: Path) -> dict[str, Any]:
    """Where and when a run was measured: what a reader of its limits wants to know.

    Raises:
        CannotJudge: the file does not say.
    """
    content = _json(path, remedy=f"write it with {_MEASURE}")
    infos = [_field(path, benchmark["name"], benchmark, "extra_info") for benchmark in content["benchmarks"]]
    here = _field(path, "a benchmark", infos[0], "environment")
    return {
        **{key: _field(path, "the environment", here, key) for key in ("machine", "cpu", "cores", "gpu", "code")},
        "load_average": max(_field(path, "a benchmark", info, "load_average") for info in infos),
        "measured_at": _field(path, "the file", content, "datetime"),
    }


def write_limits(limits: Mapping[str, Limit], path: Path, *, origins: Sequence[Mapping[str, Any]]) -> None:
    """Write limits as `read_limits` reads them, with where the runs were measured, in the order of what was seen."""
    content = {
        "rule": f"limit = worst ratio seen x {HEADROOM}; ratio = median over rounds of ours / beside, in turns",
        "runs": origins,
        "limits": {
            name: {**asdict(limit.compared), "limit": limit.limit, "seen": list(limit.seen)}
            for name, limit in sorted(limits.items())
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def worst(runs: Iterable[Mapping[str, Ratio]]) -> dict[str, Ratio]:
    """Of every benchmark the run with the largest ratio."""
    found: dict[str, Ratio] = {}
    for run in runs:
        for name, ratio in run.items():
            if name not in found or ratio.ratio > found[name].ratio:
                found[name] = ratio
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per benchmark of ours. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+", type=Path, help="written by --benchmark-json, one per run")
    parser.add_argument("--limits", type=Path, default=LIMITS, help="default: the committed ones")
    parser.add_argument("--write", action="store_true", help="make the limits from these runs")
    asked = parser.parse_args(arguments)
    try:
        runs = [read_run(path) for path in asked.benchmarks]
        if asked.write:
            limits = make_limits(runs)
            write_limits(limits, asked.limits, origins=[origin_of(path) for path in asked.benchmarks])
        else:
            limits = read_limits(asked.limits)
        for run in runs:
            check_up_to_date(limits, run, where=asked.limits)
    except CannotJudge as error:
        sys.stderr.write(f"{error}\n")
        return UNUSABLE
    ratios = worst(runs)
    beyond = [name for name, ratio in ratios.items() if ratio.ratio > limits[name].limit]
    sys.stdout.write(table(ratios, limits))
    if beyond:
        sys.stderr.write(
            f"beyond the limit: {', '.join(sorted(beyond))}. Measure again on a quiet machine; if it stays, find out "
            f"what made it slower, or, where that is meant, make limits anew: {_command(asked.limits)}\n"
        )
        return BEYOND
    return 0


def table(ratios: Mapping[str, Ratio], limits: Mapping[str, Limit]) -> str:
    """A line per benchmark, plain: it must be whole in the log of a CI job."""
    lines = [("benchmark", "ours, ms", "beside, ms", "ours, per s", "ratio", "limit", "", "beside")]
    for name, ratio in sorted(ratios.items()):
        limit = limits[name].limit
        lines.append(
            (
                name,
                f"{ratio.seconds * 1e3:.2f}",
                f"{ratio.beside_seconds * 1e3:.2f}",
                f"{ratio.compared.units / ratio.seconds:,.0f} {ratio.compared.unit}",
                f"{ratio.ratio:.3f}",
                f"{limit:.3f}",
                "within" if ratio.ratio <= limit else "BEYOND",
                ratio.compared.beside,
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words = (0, 6, 7)  # these columns are flush left
    return "".join(
        "  ".join(f"{cell:{'<' if at in words else '>'}{widths[at]}}" for at, cell in enumerate(line)).rstrip() + "\n"
        for line in lines
    )


def _json(path: Path, *, remedy: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CannotJudge(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    except ValueError as error:
        raise CannotJudge(f"{path} is not JSON, or cut short ({error}): {remedy}") from error


def _field(path: Path, what: str, entry: Any, key: str) -> Any:
    if not isinstance(entry, dict) or key not in entry:
        raise CannotJudge(f"{path}: {what} has no '{key}': write the file anew, {_MEASURE}")
    return entry[key]


def _numbers(path: Path, what: str, numbers: Any) -> list[float]:
    good = isinstance(numbers, list) and all(
        isinstance(number, int | float) and math.isfinite(number) and number > 0 for number in numbers
    )
    if not good or not numbers:
        raise CannotJudge(
            f"{path}: {what}: its times or ratios must be numbers above 0: write the file anew, {_MEASURE}"
        )
    return list(map(float, numbers))


def _command(limits: Path) -> str:
    where = "" if limits.resolve() == LIMITS else f" --limits {limits}"
    return f"python results/microbench/ratio_gate.py RUN1.json RUN2.json RUN3.json{where} --write"


if __name__ == "__main__":
    sys.exit(main())
