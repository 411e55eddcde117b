"""All checks, in the order in which they run."""

from __future__ import annotations

import logging
from collections.abc import Callable

from suite.doctor import cores, frequency, gpu, host_memory, load, numa, packages, python_state, storage
from suite.doctor.finding import Answer, Finding, Level, Unsaid
from suite.doctor.machine import Machine

log = logging.getLogger(__name__)

Check = Callable[[Machine], Answer]

CHECKS: dict[str, Check] = {
    # first what others do, before our own imports are part of it
    "other processes": load.other_processes,
    "stolen time": load.stolen_time,
    "load average": load.load_average,
    "virtual machine": load.virtual_machine,
    "governor": frequency.governor,
    "turbo": frequency.turbo,
    "clock": frequency.clock,
    "CPU quota": cores.cpu_quota,
    "affinity": cores.affinity,
    "hyper-threads": cores.hyper_threads,
    "threads": cores.thread_settings,
    "thread waiting": cores.thread_waiting,
    "NUMA": numa.numa,
    "memory": host_memory.memory,
    "swap": host_memory.swap,
    "memory limits": host_memory.memory_limits,
    "locked memory": host_memory.locked_memory,
    "shared memory": host_memory.shared_memory,
    "huge pages": host_memory.huge_pages,
    "results directory": storage.results_directory,
    "temporary directory": storage.temporary_directory,
    "matching packages": packages.matching_packages,
    "fbgemm build": packages.fbgemm_build,
    "pinned versions": packages.pinned_versions,
    "imports": packages.imports,
    "interpreter": python_state.interpreter,
    "variables": python_state.variables,
    "compiled loops": python_state.compiled_cache,
    "GPU": gpu.device,
}
GPU_CHECKS: dict[str, Check] = {
    "GPU's node": numa.gpu_node,
    "PCIe link": gpu.pcie_link,
    "GPU processes": gpu.gpu_processes,
    "GPU memory": gpu.gpu_memory,
    "ECC": gpu.ecc,
    "persistence mode": gpu.persistence_mode,
    "GPU clocks": gpu.gpu_clocks,
    "application clocks": gpu.application_clocks,
    "MIG": gpu.mig,
}
"""Where there is a device."""


def examine(machine: Machine, on_check: Callable[[str], None] = lambda name: None) -> list[Finding]:
    """Run every check.

    Args:
        machine: What is asked.
        on_check: Told the name of each check before it runs; most take no time.

    Returns:
        A finding per check, worst first; alike ones in the order of the checks.
    """
    found = [_finding(name, check, machine, on_check) for name, check in CHECKS.items()]
    if _has_gpu(machine):
        found += [_finding(name, check, machine, on_check) for name, check in GPU_CHECKS.items()]
    order = list(Level)
    return sorted(found, key=lambda finding: order.index(finding.level))


def _finding(name: str, check: Check, machine: Machine, on_check: Callable[[str], None]) -> Finding:
    on_check(name)
    try:
        answer = check(machine)
    except Unsaid as reason:
        answer = Answer(Level.UNKNOWN, str(reason))
    except Exception as error:  # one machine's odd file must not keep the other checks from being told
        log.debug("the check %r failed", name, exc_info=True)
        answer = Answer(Level.UNKNOWN, f"the check failed with {type(error).__name__}: {error}")
    return Finding(name, answer.level, answer.seen, answer.remedy)


def _has_gpu(machine: Machine) -> bool:
    try:
        return machine.gpu() is not None
    except Unsaid:
        return False
