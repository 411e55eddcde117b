"""Checks: what else computes here, and whether cores keep their clock."""

import psutil

from suite.doctor.finding import Finding, Unsaid, ok, problem, warning
from suite.doctor.machine import Machine
from suite.run.control_groups import granted_cpus

_OTHERS_WARNING, _OTHERS_PROBLEM = 0.05, 0.25
"""Shares of the CPUs that others take."""
_STOLEN_WARNING = 0.01
_CPU = "sys/devices/system/cpu"


def other_processes(machine: Machine) -> Finding:
    """CPU time that others take."""
    sample = machine.sample
    top = ", ".join(sample.top) or "nobody by name"
    seen = f"others take {sample.taken:.0%} of {len(machine.cpus)} CPUs, most of all {top}"
    if sample.taken < _OTHERS_WARNING:
        return ok(seen)
    remedy = "Stop them, or wait for their end: at every barrier a step waits for the thread that lost its core."
    return problem(seen, remedy) if sample.taken >= _OTHERS_PROBLEM else warning(seen, remedy)


def stolen_time(machine: Machine) -> Finding:
    """CPU time that a hypervisor gives to other guests."""
    stolen = machine.sample.stolen
    seen = f"other guests of this host took {stolen:.1%} of the CPU time"
    if stolen < _STOLEN_WARNING:
        return ok(seen)
    return warning(seen, "Measure at another time or on a dedicated machine; compare ratios within a round only.")


def clock(machine: Machine) -> Finding:
    """What decides on the clock of the cores, and whether it depends on temperature.

    Files: the kernel's Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst.
    """
    paths = [f"{_CPU}/cpu{cpu}/cpufreq/scaling_governor" for cpu in machine.cpus]
    if not (machine.root / paths[0]).exists():
        raise Unsaid("the kernel controls no clock here, as is usual in virtual machines; ask who runs the host")
    slow = sorted({machine.text(path) for path in paths} - {"performance"})
    if slow:
        return warning(
            f"the governor is {' and '.join(slow)}: clocks follow the load with a delay, so short steps run slower",
            "`sudo cpupower frequency-set -g performance` until the next boot.",
        )
    for path, on in ((f"{_CPU}/intel_pstate/no_turbo", "0"), (f"{_CPU}/cpufreq/boost", "1")):
        if (machine.root / path).exists() and machine.text(path) == on:
            return warning(
                "turbo is on: a system with fewer threads runs each of them faster, and heat slows all of them",
                f"For figures that repeat: `echo {1 - int(on)} | sudo tee /{path}`. Or leave it on, and say so.",
            )
    return ok("governor performance")


def cpu_quota(machine: Machine) -> Finding:
    """A quota makes no CPU invisible: as many threads as CPUs use it up and then all stand still."""
    cpus = sorted(machine.cpus)
    try:
        granted = granted_cpus(machine.root)
    except OSError as error:
        raise Unsaid(f"the control groups of this process cannot be read ({error.strerror})") from None
    if granted >= len(cpus):
        return ok("no quota below the CPUs that can be used")
    whole = max(1, int(granted))
    return problem(
        f"the container may use {granted:.1f} CPUs but sees {len(cpus)}: cells start a thread for each, and all of "
        "them stand still whenever the quota is used up",
        f"Give it CPUs instead of a quota (`docker run --cpuset-cpus ...`), or `taskset -c {_listed(cpus[:whole])}`.",
    )


def cores(machine: Machine) -> Finding:
    """Whether two threads would share a core, and whether others may compute on the rest of the machine."""
    first: dict[str, int] = {}
    for cpu in sorted(machine.cpus):
        first.setdefault(machine.text(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"), cpu)
    count = len(machine.cpus)
    if len(first) < count:
        return warning(
            f"{count} CPUs are {len(first)} cores: cells start a thread on each CPU, and two on a core take turns",
            f"One thread per core: `taskset -c {_listed(sorted(first.values()))} python run_bench.py ...`.",
        )
    all_cpus = psutil.cpu_count() or count
    if count < all_cpus:
        return ok(
            f"{count} of {all_cpus} CPUs can be used",
            f"What runs on the others shares caches and memory bandwidth. Figures are those of {count} CPUs: say so.",
        )
    return ok(f"all {count} CPUs, one thread per core")


def numa(machine: Machine) -> Finding:
    """Whether threads and tables may lie on different nodes."""
    # the kernel links each CPU's folder to that of its node; a kernel without NUMA has no links
    links = (link for cpu in machine.cpus for link in (machine.root / _CPU / f"cpu{cpu}").glob("node[0-9]*"))
    nodes = sorted({int(link.name.removeprefix("node")) for link in links})
    if len(nodes) < 2:
        return ok("all our CPUs are on one node")
    best = nodes[0]
    if machine.gpu is not None:
        domain, _, rest = str(machine.gpu.ask("nvmlDeviceGetPciInfo").busId).lower().partition(":")
        # the driver writes the domain with eight digits, the kernel with four; -1 is a node that nobody knows
        node = int(machine.text(f"sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node"))
        best = node if node >= 0 else best
    return warning(
        f"our CPUs are on nodes {_listed(nodes)}: the threads of one reach a table on another more slowly",
        f"On one node, the GPU's if there is one: `numactl --cpunodebind={best} --membind={best} python run_bench.py`.",
    )


def _listed(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
