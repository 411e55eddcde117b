"""Whether our micro-benchmarks are still as fast beside what they are measured against as when limits were made.

    python results/microbench/ratio_gate.py benchmark.json
    python results/microbench/ratio_gate.py benchmark.json --limits my_limits.json
    python results/microbench/ratio_gate.py run1.json run2.json run3.json --write

Reads what `pytest tests/bench --benchmark-enable --benchmark-only --benchmark-json FILE` wrote. A time does not travel
between machines, a ratio of two sides that took turns in one run travels better: of every benchmark of ours, the median
over its rounds of its time by that of the other side in the round before. Of several runs the worst counts. Times are
CPU seconds of the process, all its threads together: on a machine that others use, wall time is theirs too.

`--write` makes limits anew from the runs given: the worst ratio seen, by 1.25. Each stands with the ratios that it was
derived from, and with what was compared: a run of other sizes, threads, devices or clocks is refused, not judged.

Exit codes: 0, all within their limits; 1, one is beyond; 2, the files cannot be judged, and the message says why.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

LIMITS = Path(__file__).resolve().with_name("limits.json")
HEADROOM = 1.25
BEYOND = 1
UNUSABLE = 2
_MEASURE = "make microbench"
_ORIGIN = ("machine", "cpu", "cores", "gpu", "code")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rounds = Annotated[list[Positive], Field(min_length=1)]
File = TypeVar("File", bound=BaseModel)


class CannotJudge(Exception):
    """A file of benchmarks or limits that says too little; the message says what to do."""


class Compared(BaseModel):
    """The subject of a ratio. Only ratios of equals are judged by a limit."""

    beside: str
    unit: str
    units: int
    threads: int
    device: str
    clock: str

    def differences(self, other: "Compared") -> str:
        """Fields in which another one differs, in words; empty where none does."""
        mine, others = (one.model_dump(include=set(Compared.model_fields)) for one in (self, other))
        return ", ".join(f"{key} {others[key]} instead of {mine[key]}" for key in mine if mine[key] != others[key])


class Ratio(Compared):
    """One benchmark of ours in one run: medians of a round of each side, and over the pairs of rounds."""

    seconds: float
    beside_seconds: float
    ratio: float


class Limit(Compared):
    """Largest ratio allowed, and the ratios that were seen when that was decided."""

    limit: Positive
    seen: Rounds


class Limits(BaseModel):
    """The file of limits; `runs` says where and when each run was measured that they were made from."""

    rule: str = f"limit = worst ratio seen x {HEADROOM}; ratio = median over rounds of ours / beside, in turns"
    runs: list[dict[str, Any]]
    limits: dict[str, Limit]


class Beside(BaseModel):
    """Rounds of the other side, each before one of ours."""

    name: str
    seconds: Rounds


class Info(BaseModel):
    """Notes of `tests/bench/turns.py` on a side."""

    role: Literal["ours", "peer", "bound"]
    unit: str
    units: int
    threads: int
    device: str
    clock: str
    load_average: float
    environment: dict[str, Any]
    beside: Beside | None = None


class Stats(BaseModel):
    data: Rounds


class Benchmark(BaseModel):
    name: str
    stats: Stats
    extra_info: Info


class Run(BaseModel):
    """The parts of a file of pytest-benchmark's that are read."""

    datetime: str
    benchmarks: Annotated[list[Benchmark], Field(min_length=1)]

    @property
    def origin(self) -> dict[str, Any]:
        """Machine, code, load and time of the measurement, for a reader of its limits."""
        infos = [benchmark.extra_info for benchmark in self.benchmarks]
        here = {key: infos[0].environment[key] for key in _ORIGIN}
        return {**here, "load_average": max(info.load_average for info in infos), "measured_at": self.datetime}


def read(model: type[File], path: Path, *, remedy: str) -> File:
    """A file.

    Raises:
        CannotJudge: it cannot be read, is cut short, or lacks a field.
    """
    try:
        return model.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CannotJudge(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise CannotJudge(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}: {remedy}") from error


def ratios_of(run: Run, path: Path) -> dict[str, Ratio]:
    """The ratios of ours in a run, by name.

    Raises:
        CannotJudge: the run names a benchmark twice, or lacks the other side of one of ours.
    """
    sides = {benchmark.name: benchmark for benchmark in run.benchmarks}
    if len(sides) < len(run.benchmarks):
        raise CannotJudge(f"{path}: two benchmarks have one name: rename one, a limit is found by its name")
    found = {name: _ratio(side, sides, path) for name, side in sides.items() if side.extra_info.role == "ours"}
    if not found:
        raise CannotJudge(f"{path}: no benchmark has the role 'ours': run all of tests/bench, {_MEASURE}")
    return found


def _ratio(ours: Benchmark, sides: Mapping[str, Benchmark], path: Path) -> Ratio:
    info, own = ours.extra_info, ours.stats.data
    if info.beside is None:
        raise CannotJudge(f"{path}: {ours.name} has no other side: give `beside` to Turns.measure in its test")
    name, beside = info.beside.name, info.beside.seconds
    if name not in sides:
        raise CannotJudge(
            f"{path}: {ours.name} is measured beside {name}, which is not in the run: leave out -k and -m"
        )
    other = sides[name].extra_info
    if other.role == "ours":
        raise CannotJudge(f"{path}: {ours.name} is measured beside {name}, which is neither a peer nor a bound")
    if info.units != other.units:
        raise CannotJudge(
            f"{path}: {ours.name} works on {info.units}, {name} on {other.units}: give both the same work"
        )
    if len(own) != len(beside):
        raise CannotJudge(
            f"{path}: {ours.name} has {len(own)} rounds and {name} beside it {len(beside)}: measure again"
        )
    return Ratio(
        beside=name,
        unit=info.unit,
        units=info.units,
        threads=info.threads,
        device=info.device,
        clock=info.clock,
        seconds=statistics.median(own),
        beside_seconds=statistics.median(beside),
        ratio=statistics.median(mine / others for mine, others in zip(own, beside, strict=True)),
    )


def make_limits(runs: Sequence[Mapping[str, Ratio]]) -> dict[str, Limit]:
    """Limits of what runs have seen: the worst of each, by `HEADROOM`.

    Raises:
        CannotJudge: the runs are not of the same benchmarks.
    """
    first = runs[0]
    limits = {}
    for number, run in enumerate(runs[1:], start=2):
        odd = sorted(run.keys() ^ first.keys())
        odd += [name for name in first.keys() & run.keys() if run[name].differences(first[name])]
        if odd:
            raise CannotJudge(f"run {number} and run 1 differ in {', '.join(odd)}: measure all of them in the same way")
    for name, ratio in sorted(first.items()):
        seen = [round(run[name].ratio, 4) for run in runs]
        limits[name] = Limit(**ratio.model_dump(), limit=round(max(seen) * HEADROOM, 3), seen=seen)
    return limits


def check_up_to_date(limits: Mapping[str, Limit], run: Mapping[str, Ratio], *, where: Path) -> None:
    """Demand one limit for every benchmark of ours, of the same work.

    Raises:
        CannotJudge: names every one that has none or is none, and how to make limits.
    """
    problems = [f"{name} has no limit" for name in run if name not in limits]
    problems += [f"the limit of {name} is of no benchmark" for name in limits if name not in run]
    for name, limit in limits.items():
        differences = limit.differences(run[name]) if name in run else ""
        if differences:
            problems.append(f"{name} has {differences}")
    if problems:
        raise CannotJudge(
            f"{where} is of other benchmarks than this run: {'; '.join(problems)}. Run all of tests/bench with the "
            f"sizes, threads, device and clock of the limits ({_MEASURE}), or make limits anew of several runs: "
            f"{_command(where)}"
        )


def worst(runs: Iterable[Mapping[str, Ratio]]) -> dict[str, Ratio]:
    """The run with the largest ratio, by benchmark."""
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
        read_runs = [read(Run, path, remedy=f"write it anew, {_MEASURE}") for path in asked.benchmarks]
        runs = [ratios_of(run, path) for run, path in zip(read_runs, asked.benchmarks, strict=True)]
        if asked.write:
            made = Limits(runs=[run.origin for run in read_runs], limits=make_limits(runs))
            asked.limits.parent.mkdir(parents=True, exist_ok=True)
            asked.limits.write_text(made.model_dump_json(indent=1) + "\n", encoding="utf-8")
        limits = read(Limits, asked.limits, remedy=f"make limits: {_command(asked.limits)}").limits
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
    lines = [
        {
            "benchmark": name,
            "ours, ms": f"{ratio.seconds * 1e3:.2f}",
            "beside, ms": f"{ratio.beside_seconds * 1e3:.2f}",
            "ours, per s": f"{ratio.units / ratio.seconds:,.0f} {ratio.unit}",
            "ratio": f"{ratio.ratio:.3f}",
            "limit": f"{limits[name].limit:.3f}",
            "": "within" if ratio.ratio <= limits[name].limit else "BEYOND",
            "beside": ratio.beside,
        }
        for name, ratio in sorted(ratios.items())
    ]
    return pd.DataFrame(lines).to_string(index=False) + "\n"


def _command(limits: Path) -> str:
    where = "" if limits.resolve() == LIMITS else f" --limits {limits}"
    return f"python results/microbench/ratio_gate.py RUN1.json RUN2.json RUN3.json{where} --write"


if __name__ == "__main__":
    sys.exit(main())
