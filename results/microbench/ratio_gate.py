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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

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


class Work(BaseModel):
    """The work of a round."""

    unit: str
    units: int
    threads: int
    device: str
    clock: str


class Compared(Work):
    """The subject of a ratio. Only ratios of equals are judged by a limit."""

    beside: str


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


class Info(Work):
    """Notes of `tests/bench/turns.py` on a side; a benchmark of ours is one that is measured beside another."""

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

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The ratios of ours, by name."""
        found = {}
        for benchmark in self.benchmarks:
            info, own = benchmark.extra_info, benchmark.stats.data
            if info.beside is not None:
                pairs = zip(own, info.beside.seconds, strict=True)
                found[benchmark.name] = Ratio(
                    **info.model_dump(include=set(Work.model_fields)),
                    beside=info.beside.name,
                    seconds=statistics.median(own),
                    beside_seconds=statistics.median(info.beside.seconds),
                    ratio=statistics.median(mine / others for mine, others in pairs),
                )
        return found


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


def check_alike(known: Mapping[str, Compared], run: Mapping[str, Compared], *, what: str) -> None:
    """Demand the same benchmarks in both, each of the same work.

    Raises:
        CannotJudge: names every one that is not, and how to make limits.
    """
    problems = [f"{what} lacks {name}" for name in run if name not in known]
    problems += [f"the run lacks {name}" for name in known if name not in run]
    for name in known.keys() & run.keys():
        theirs, ours = (side[name].model_dump(include=set(Compared.model_fields)) for side in (known, run))
        problems += [
            f"{name} has {key} {ours[key]} instead of {theirs[key]}" for key in ours if ours[key] != theirs[key]
        ]
    if problems:
        raise CannotJudge(
            f"not to be compared: {'; '.join(problems)}. Run all of tests/bench with the sizes, "
            f"threads, device and clock of the limits ({_MEASURE}), or make limits anew: {_command()}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per benchmark of ours. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+", type=Path, help="written by --benchmark-json, one per run")
    parser.add_argument("--limits", type=Path, default=LIMITS, help="default: the committed ones")
    parser.add_argument("--write", action="store_true", help="make the limits from these runs")
    asked = parser.parse_args(arguments)
    try:
        files = [read(Run, path, remedy=f"write it anew, {_MEASURE}") for path in asked.benchmarks]
        runs = [file.ratios for file in files]
        if asked.write:
            for run in runs:
                check_alike(runs[0], run, what="the first run")
            seen = {name: [round(run[name].ratio, 4) for run in runs] for name in sorted(runs[0])}
            limits = {
                name: Limit(**runs[0][name].model_dump(), limit=round(max(ratios) * HEADROOM, 3), seen=ratios)
                for name, ratios in seen.items()
            }
            made = Limits(runs=[file.origin for file in files], limits=limits)
            asked.limits.write_text(made.model_dump_json(indent=1) + "\n", encoding="utf-8")
        limits = read(Limits, asked.limits, remedy=f"make limits: {_command()}").limits
        for run in runs:
            check_alike(limits, run, what=str(asked.limits))
    except CannotJudge as error:
        sys.stderr.write(f"{error}\n")
        return UNUSABLE
    ratios = {name: max((run[name] for run in runs), key=lambda ratio: ratio.ratio) for name in sorted(limits)}
    beyond = [name for name, ratio in ratios.items() if ratio.ratio > limits[name].limit]
    sys.stdout.write(table(ratios, limits))
    if beyond:
        sys.stderr.write(
            f"beyond the limit: {', '.join(beyond)}. Measure again on a quiet machine; if it stays, find out what "
            f"made it slower, or, where that is meant, make limits anew: {_command()}\n"
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
        for name, ratio in ratios.items()
    ]
    return pd.DataFrame(lines).to_string(index=False) + "\n"


def _command() -> str:
    return "python results/microbench/ratio_gate.py RUN1.json RUN2.json RUN3.json --write"


if __name__ == "__main__":
    sys.exit(main())
