"""Checks: what else computes here."""

from __future__ import annotations

from suite.doctor.finding import Answer, Unsaid, ok, problem, warning
from suite.doctor.machine import Machine
from suite.doctor.sample import Sample

_OTHERS_WARNING, _OTHERS_PROBLEM = 0.05, 0.25
"""Shares of the CPUs that others take."""
_STOLEN_WARNING, _STOLEN_PROBLEM = 0.01, 0.10


def other_processes(machine: Machine) -> Answer:
    """CPU time that others take."""
    sample = machine.sample()
    share = sample.others_s / (sample.wall_s * sample.cpus)
    seen = f"others take {share:.0%} of {_cpus(sample.cpus)}{_names(sample)}"
    if share < _OTHERS_WARNING:
        return ok(seen)
    remedy = "Stop them, or wait for their end: at every barrier a step waits for the thread that lost its core."
    return problem(seen, remedy) if share >= _OTHERS_PROBLEM else warning(seen, remedy)


def load_average(machine: Machine) -> Answer:
    """Waiting processes beyond the CPUs."""
    load, cpus = machine.load_average(), len(machine.online_cpus())
    seen = f"{load:.1f} processes wanted to compute over the last minute, on {_cpus(cpus)}"
    if load <= cpus:
        return ok(seen)
    return warning(
        seen,
        "Wait until it has fallen below the number of CPUs; `top` shows who computes, or waits for a disk (state D).",
    )


def stolen_time(machine: Machine) -> Answer:
    """CPU time that a hypervisor gives to other guests."""
    sample = machine.sample()
    if sample.stolen_s is None:
        raise Unsaid("the kernel counts no stolen time by CPU")
    share = sample.stolen_s / (sample.wall_s * sample.cpus)
    seen = f"other guests of this host took {share:.1%} of the CPU time"
    if share < _STOLEN_WARNING:
        return ok(seen)
    remedy = (
        "Measure at another time, or on a machine with cores of its own (a dedicated or bare-metal instance); compare "
        "ratios within a round only, and take more --rounds."
    )
    return problem(seen, remedy) if share >= _STOLEN_PROBLEM else warning(seen, remedy)


def virtual_machine(machine: Machine) -> Answer:
    """Whether neighbours that nobody sees share the hardware."""
    text = machine.text("proc/cpuinfo")
    flags = next((line for line in text.splitlines() if line.startswith("flags")), None)
    if flags is None:
        raise Unsaid("/proc/cpuinfo has no line of flags, which would tell a virtual machine")
    if "hypervisor" not in flags.split():
        return ok("no hypervisor")
    return ok(
        "this is a virtual machine: neighbours on the same host share its caches and memory bandwidth",
        "Speeds may differ by tens of percent from one hour to the next. Take several --rounds and compare the ratios "
        "within them, not absolute speeds of different days.",
    )


def _names(sample: Sample) -> str:
    if not sample.top:
        return ""
    shown = ", ".join(f"{busy.name} (pid {busy.pid}, {busy.cpu_s / sample.wall_s:.0%} of one)" for busy in sample.top)
    return f"; most of all {shown}"


def _cpus(count: int) -> str:
    return "1 CPU" if count == 1 else f"{count} CPUs"
