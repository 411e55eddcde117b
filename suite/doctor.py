"""Command line: `python -m suite doctor`, which names what on this machine would spoil a benchmark."""

import enum
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from suite.records.command_line import ShownConsole, errors_told
from suite.records.environment import NO_SPEED, VIRTUAL_DEVICE, ask_nvml, installed_versions, visible_gpu
from suite.run.conditions import MachineMonitor
from suite.run.drive import IN_MEMORY, file_system
from suite.run.resources import granted_cpus
from suite.tables.terminal import print_line

TRIPLES = {"2.11": ("1.6", "1.6"), "2.12": ("1.7", "1.7"), "2.13": ("1.8", "1.8"), "2.14": ("1.9", "1.9")}
"""fbgemm and torchrec of each torch. Both are built against one torch, which fbgemm's compatibility table names."""
_FBGEMM = ("fbgemm-gpu", "fbgemm-gpu-cpu")
_OTHERS_WARNING, _OTHERS_PROBLEM = 0.05, 0.25
"""Shares of the CPUs that other processes take."""
_STOLEN_WARNING = 0.01
_PACE_WARNING = 1.15
"""Time of a fixed piece of work in the slow tenths of a second over that in the fast ones."""
_LEAST_FREE_BYTES = 10**9
_USED_BYTES, _USED_SHARE = 1 << 30, 0.02
"""Memory of the GPU in use: the driver itself keeps some hundred MiB, more on larger devices."""


class Level(enum.StrEnum):
    """Severity of a finding, worst first."""

    PROBLEM = "problem"
    """Figures measured now would be wrong, or there would be none."""
    WARNING = "warning"
    """Figures would be noisier, slower or not comparable with others."""
    UNKNOWN = "unknown"
    """The machine does not say."""
    OK = "ok"


@dataclass(frozen=True)
class Diagnosis:
    """The answer of one check.

    Attributes:
        seen: Observation, in one sentence or more.
        remedy: Advice on it.
    """

    level: Level
    seen: str
    remedy: str = ""


ok, unknown, warning, problem = (
    partial(Diagnosis, level) for level in (Level.OK, Level.UNKNOWN, Level.WARNING, Level.PROBLEM)
)


def load(*, seconds: float) -> Diagnosis:
    """CPU time that other processes and other guests of the host take while this process waits."""
    watched = MachineMonitor(cuda=False)
    time.sleep(seconds)
    conditions = watched.conditions()
    taken, stolen = conditions.others_cpu_share or 0.0, conditions.stolen_cpu_share or 0.0
    seen = f"others take {taken:.0%} of {len(os.sched_getaffinity(0))} CPUs, a hypervisor {stolen:.1%}"
    if taken >= _OTHERS_WARNING:
        remedy = "Stop them (`top` names them), or wait for their end: a step waits for a thread that lost its core."
        return problem(seen, remedy) if taken >= _OTHERS_PROBLEM else warning(seen, remedy)
    if stolen >= _STOLEN_WARNING:
        return warning(seen, "Measure at another time or on a dedicated machine; compare ratios within a round only.")
    return ok(seen)


def pace(*, seconds: float, clock: Callable[[], float] = time.perf_counter) -> Diagnosis:
    """How even the machine's speed is: a guest on the other thread of a core slows this one, and no counter says so."""
    values, places = np.ones(1 << 22, np.float32), np.random.default_rng(0).integers(1 << 22, size=1 << 16)
    tenths: dict[int, list[float]] = {}
    start = now = clock()
    while now - start < seconds:
        values.take(places).sum()
        before, now = now, clock()
        tenths.setdefault(int((before - start) * 10), []).append(now - before)
    taken = sorted(map(statistics.median, tenths.values()))
    slow = taken[len(taken) * 9 // 10] / taken[len(taken) // 10]
    seen = f"a fixed piece of work takes {slow:.2f} times as long in slow tenths of a second as in fast ones"
    if slow < _PACE_WARNING:
        return ok(seen)
    return warning(seen, "Measure at another time or on a dedicated machine, with --rounds 3 or more.")


def governor(root: Path = Path("/")) -> Diagnosis:
    """The governor decides on the clock of the cores (the kernel's Documentation/admin-guide/pm/cpufreq.rst)."""
    files = [
        root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor" for cpu in sorted(os.sched_getaffinity(0))
    ]
    if not files[0].exists():
        return unknown("the kernel controls no clock here, as is usual in virtual machines; ask who runs the host")
    slow = sorted({file.read_text().strip() for file in files} - {"performance"})
    if slow:
        return warning(
            f"the governor is {' and '.join(slow)}: clocks follow the load with a delay, so short steps run slower",
            "`sudo cpupower frequency-set -g performance` until the next boot.",
        )
    return ok("governor performance")


def cpu_quota(root: Path = Path("/")) -> Diagnosis:
    """A quota makes no CPU invisible: as many threads as CPUs use it up and then all stand still."""
    cpus = sorted(os.sched_getaffinity(0))
    granted = granted_cpus(root)
    if granted >= len(cpus):
        return ok("no quota below the CPUs that can be used")
    first = ",".join(map(str, cpus[: max(1, int(granted))]))
    return problem(
        f"the container may use {granted:.1f} CPUs but sees {len(cpus)}: cells start a thread for each, and all of "
        "them stand still whenever the quota is used up",
        f"Give it CPUs instead of a quota (`docker run --cpuset-cpus ...`), or `taskset -c {first}`.",
    )


def room(path: Path, remedy: str) -> Diagnosis:
    """Room and kind of file system of a directory, or of the nearest one above it that is there."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists()).resolve()
    free_bytes, kind = shutil.disk_usage(there).free, file_system(there)
    seen = f"{path}: {free_bytes / 1e9:.1f} GB free, file system {kind}"
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(f"{seen}; it cannot be written", remedy)
    if free_bytes < _LEAST_FREE_BYTES:
        return problem(seen, f"Free some space. {remedy}")
    if kind in IN_MEMORY:
        return warning(f"{seen}: tables 'on disk' would lie in memory, records are gone after a restart", remedy)
    return ok(seen)


def matching_packages() -> Diagnosis:
    """Whether torch, fbgemm and torchrec are of releases that were built for each other."""
    versions = installed_versions(("torch", *_FBGEMM, "torchrec"))
    if all(build in versions for build in _FBGEMM):
        return problem(
            "fbgemm-gpu and fbgemm-gpu-cpu are both installed and have overwritten each other's files",
            "`pip uninstall fbgemm-gpu fbgemm-gpu-cpu`, then `make setup`.",
        )
    seen = ", ".join(f"{name} {version}" for name, version in versions.items()) or "none is installed"
    releases = [".".join(version.split(".")[:2]) for version in versions.values()]  # 2.13 of 2.13.0+cpu
    if "torch" in versions and releases[0] not in TRIPLES:
        return warning(
            f"{seen}: this torch is none of {', '.join(TRIPLES)}, with which the suite is tested",
            "`make setup` installs what it is tested with.",
        )
    if releases not in [[torch, *others] for torch, others in TRIPLES.items()]:
        triples = "; ".join(f"{torch} with {' and '.join(others)}" for torch, others in TRIPLES.items())
        return problem(
            f"{seen}: of torch, fbgemm and torchrec these belong together: {triples}",
            "`make setup`; fbgemm's library is built against one torch, and fails to load or crashes with others.",
        )
    return ok(seen)


def gpu_link(nvml: Any, gpu: Any) -> Diagnosis:  # noqa: ANN401 - a module and an opaque handle
    """Width and generation of the PCIe link that rows are moved over."""
    width = int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))
    widest = int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))
    if min(width, widest) <= 0:
        return unknown("the driver names no width of the link: virtual machines may hide the bus")
    seen = f"PCIe generation {nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)}, width {width} of {widest}"
    if width == widest:
        return ok(seen)
    return problem(
        f"{seen}: rows move at {width / widest:.0%} of the speed",
        "Seat the card anew, use a slot that is wired in full, look for a riser or a switch that shares lanes.",
    )


def gpu_in_use(nvml: Any, gpu: Any) -> Diagnosis:  # noqa: ANN401 - a module and an opaque handle
    """Other processes on the device, and how much of its memory is taken before anything runs."""
    pids = [one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(gpu) if one.pid != os.getpid()]
    state = nvml.nvmlDeviceGetMemoryInfo(gpu)
    seen = f"{state.used / 1e9:.1f} of {state.total / 1e9:.1f} GB in use"
    if pids:
        return problem(
            f"{seen}; other processes compute on it: pid {', '.join(map(str, pids))}",
            "Stop them, wait for their end, or choose another device with CUDA_VISIBLE_DEVICES. In a container the "
            "numbers may be the host's.",
        )
    if state.used > max(_USED_BYTES, _USED_SHARE * state.total):
        return warning(
            seen,
            "Something holds memory although no process is listed here, for example a screen or another container: "
            "`nvidia-smi` on the host shows it.",
        )
    return ok(seen)


def examine(*, seconds: float) -> dict[str, Diagnosis]:
    """Run every check that applies to the machine: findings by name, worst first, alike ones in order of the checks."""
    checks: dict[str, Callable[[], Diagnosis]] = {
        "load": partial(load, seconds=seconds),
        "pace": partial(pace, seconds=seconds),
        "governor": governor,
        "CPU quota": cpu_quota,
        "results directory": partial(room, Path("results"), "Name a directory on a local disk with --out."),
        "temporary directory": partial(room, Path(tempfile.gettempdir()), "Set TMPDIR to a directory on a local disk."),
        "packages": matching_packages,
    }
    gpu = visible_gpu()
    if gpu is not None:
        link = partial(unknown, NO_SPEED) if gpu.model == VIRTUAL_DEVICE else partial(_asked, gpu_link)
        checks |= {"GPU link": link, "GPU in use": partial(_asked, gpu_in_use)}
    found = {name: _finding(check) for name, check in checks.items()}
    return dict(sorted(found.items(), key=lambda item: list(Level).index(item[1].level)))


def _asked(check: Callable[[Any, Any], Diagnosis]) -> Diagnosis:
    return ask_nvml(check) or unknown("NVML does not answer: `make setup BUILD=cuda` installs nvidia-ml-py")


def _finding(check: Callable[[], Diagnosis]) -> Diagnosis:
    try:
        return check()
    except Exception as error:  # one machine's odd file must not keep the other checks from being told
        return unknown(f"the check failed with {type(error).__name__}: {error}")


_STYLES = {Level.PROBLEM: "bold red", Level.WARNING: "yellow", Level.UNKNOWN: "cyan", Level.OK: "green"}


def doctor_command(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings make the exit code 1 as well")] = False,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60, help="How long use of the CPUs is watched, and then their pace")
    ] = 2.0,
) -> None:
    """Find what on this machine would spoil a benchmark, each with a remedy.

    Looks at load, pace, governor, CPU quota, room on disk, packages, the GPU's link and who uses the GPU.
    It only reads: nothing is changed. What the machine does not say is `unknown`, with the reason.

    For example: `python -m suite doctor --strict --seconds 10`.

    The exit code is 0 unless there is a problem (1; with --strict a warning, too), 2 for a wrong option, 130 after
    Ctrl-C.
    """
    with errors_told(left="the checks were not finished") as errors:
        with errors.status("watching what else computes"):
            findings = examine(seconds=seconds)
        show(findings, ShownConsole(markup=False, highlight=False))
    bad = {Level.PROBLEM, Level.WARNING} if strict else {Level.PROBLEM}
    raise typer.Exit(int(any(finding.level in bad for finding in findings.values())))


def show(findings: Mapping[str, Diagnosis], console: Console) -> None:
    """One block for each finding, by the name of its check; what is well, as a list of names."""
    for name, finding in findings.items():
        if finding.level is not Level.OK:
            print_line(console, f"{finding.level}: {name}", style=_STYLES[finding.level])
            print_line(console, finding.seen, indent=2)
            if finding.remedy:
                print_line(console, f"-> {finding.remedy}", indent=2)
            console.line()
    counts = Counter(finding.level for finding in findings.values())
    if counts[Level.OK]:
        print_line(console, "ok: " + ", ".join(name for name, finding in findings.items() if finding.level is Level.OK))
    print_line(console, ", ".join(f"{level}: {counts[level]}" for level in Level))
