"""All checks, in the order in which they run."""

from collections.abc import Callable
from functools import partial

from suite.doctor import cpu, gpu, software, storage
from suite.doctor.finding import Finding, Level, Unsaid
from suite.doctor.machine import Gpu, Machine

CHECKS: dict[str, Callable[[Machine], Finding]] = {
    # first what others do, before our own imports are part of it
    "other processes": cpu.other_processes,
    "stolen time": cpu.stolen_time,
    "clock": cpu.clock,
    "CPU quota": cpu.cpu_quota,
    "cores": cpu.cores,
    "NUMA": cpu.numa,
    "memory": storage.memory,
    "swap": storage.swap,
    "memory control groups": storage.memory_groups,
    "results directory": storage.results_directory,
    "temporary directory": storage.temporary_directory,
    "matching packages": software.matching_packages,
    "imports": software.imports,
    "variables": software.variables,
    "GPU": gpu.device,
}
GPU_CHECKS: dict[str, Callable[[Gpu], Finding]] = {
    "GPU link": gpu.link,
    "GPU in use": gpu.in_use,
    "GPU clocks": gpu.clocks,
    "C compiler": gpu.compiler,
}


def examine(machine: Machine) -> dict[str, Finding]:
    """Run every check that applies to the machine: findings by name, worst first, alike ones in order of the checks."""
    checks: dict[str, Callable[[], Finding]] = {name: partial(check, machine) for name, check in CHECKS.items()}
    if machine.gpu is not None:
        checks |= {name: partial(check, machine.gpu) for name, check in GPU_CHECKS.items()}
    found = {name: _finding(check) for name, check in checks.items()}
    return dict(sorted(found.items(), key=lambda item: list(Level).index(item[1].level)))


def _finding(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Unsaid as reason:
        return Finding(Level.UNKNOWN, str(reason))
    except Exception as error:  # one machine's odd file must not keep the other checks from being told
        return Finding(Level.UNKNOWN, f"the check failed with {type(error).__name__}: {error}")
