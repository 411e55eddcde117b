"""Checks: whether cores keep their clock.

Files: the kernel's Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst; frequencies are in kHz.
"""

from __future__ import annotations

from collections import Counter

from suite.doctor.finding import Answer, Unsaid, ok, warning
from suite.doctor.machine import Machine

_CPU = "sys/devices/system/cpu"
_NO_CPUFREQ = "the kernel controls no clock here, as is usual in virtual machines: the host's setting cannot be seen"
_FAR_BELOW = 0.7


def governor(machine: Machine) -> Answer:
    """What decides on the clock."""
    governors = Counter(_each(machine, "cpufreq/scaling_governor"))
    seen = ", ".join(f"{name} on {count} CPUs" for name, count in governors.most_common())
    if set(governors) == {"performance"}:
        return ok(seen)
    return warning(
        f"{seen}: clocks follow the load with a delay, so short steps run slower than long ones",
        "`sudo cpupower frequency-set -g performance` until the next boot.",
    )


def turbo(machine: Machine) -> Answer:
    """Whether clocks depend on temperature and on how many cores compute."""
    for path, on in ((f"{_CPU}/intel_pstate/no_turbo", "0"), (f"{_CPU}/cpufreq/boost", "1")):
        try:
            text = machine.text(path)
        except Unsaid:
            continue
        if text != on:
            return ok("off")
        return warning(
            "on: the clock depends on temperature and on how many cores compute, so a system with fewer threads runs "
            "each of them faster",
            f"For figures that repeat: `echo {1 - int(on)} | sudo tee /{path}`. Or leave it on for all, and say so.",
        )
    raise Unsaid(_NO_CPUFREQ)


def clock(machine: Machine) -> Answer:
    """Whether the fastest core, which is the one that asks, is far below what it could do."""
    now = max(_numbers(machine, "cpufreq/scaling_cur_freq")) / 1e6
    most = max(_numbers(machine, "cpufreq/cpuinfo_max_freq")) / 1e6
    seen = f"the fastest core runs at {now:.1f} of {most:.1f} GHz"
    if now >= _FAR_BELOW * most:
        return ok(seen)
    return warning(
        seen,
        "Look for heat (`sensors`), a power limit (`turbostat`), a limit on the clock (`cpupower frequency-info`) and "
        "a laptop on battery.",
    )


def _each(machine: Machine, name: str) -> list[str]:
    found = []
    for cpu in sorted(machine.affinity()):
        try:
            found.append(machine.cpu_file(cpu, name))
        except Unsaid:
            continue
    if not found:
        raise Unsaid(_NO_CPUFREQ)
    return found


def _numbers(machine: Machine, name: str) -> list[int]:
    texts = _each(machine, name)
    if not all(text.isdigit() for text in texts):
        raise Unsaid(f"{name} holds no number")
    return [int(text) for text in texts]
