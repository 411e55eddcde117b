"""Checks: how much of the machine this process may use, and how many threads would share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from suite.doctor.finding import Answer, Unsaid, ok, problem, warning
from suite.doctor.machine import Machine, cpu_list, cpu_words

_CGROUP = "sys/fs/cgroup"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")
_LONG_SPIN = 100_000
"""Of GOMP_SPINCOUNT. The suite's workers use 2,000 unless it is set; libgomp's own default is 300,000 (its env.c)."""


def cpu_quota(machine: Machine) -> Answer:
    """A quota makes no CPU invisible: as many threads as CPUs use it up and then all stand still."""
    cpus = len(machine.affinity())
    quotas = list(_quotas(machine))
    if not quotas:
        raise Unsaid(f"no control group for CPU time is visible below /{_CGROUP}")
    least = min(quotas)
    if least >= cpus:
        return ok("none" if least == float("inf") else f"{least:.1f} CPUs, no fewer than can be used")
    whole = max(1, int(least))
    return problem(
        f"the container may use {least:.1f} CPUs but sees {cpus}: cells start a thread for each, and all of "
        "them stand still whenever the quota is used up",
        f"Give it CPUs instead of a quota (`docker run --cpuset-cpus 0-{whole - 1}`), or start with "
        f"`taskset -c {cpu_words(frozenset(sorted(machine.affinity())[:whole]))}`.",
    )


def affinity(machine: Machine) -> Answer:
    """Whether others may compute on the rest of the machine."""
    mine, online = machine.affinity(), machine.online_cpus()
    if mine >= online:
        return ok(f"all {len(online)} CPUs")
    return ok(
        f"{len(mine)} of {len(online)} CPUs: {cpu_words(mine)}",
        f"What runs on the others shares caches and memory bandwidth. Figures are those of {len(mine)} CPUs: say so.",
    )


def hyper_threads(machine: Machine) -> Answer:
    """Whether two threads would share a core."""
    mine = machine.affinity()
    cores = {cpu_list(machine.cpu_file(cpu, "topology/thread_siblings_list")) for cpu in mine}
    shared = [core for core in cores if len(core & mine) > 1]
    if shared:
        one_each = frozenset(min(core & mine) for core in cores)
        return warning(
            f"{len(mine)} CPUs are {len(cores)} cores: cells start a thread on each, and two on a core take turns",
            f"One thread per core: `taskset -c {cpu_words(one_each)} python run_bench.py ...`.",
        )
    if any(core - mine for core in cores):
        return ok("one thread per core; the others of these cores are not ours, keep them free")
    return ok("one thread per core")


def thread_settings(machine: Machine) -> Answer:
    """Threads that torch and the environment ask for."""
    cpus = len(machine.affinity())
    set_otherwise = [
        f"{name}={machine.environment[name]}"
        for name in _THREADS
        if machine.environment.get(name, str(cpus)) != str(cpus)
    ]
    torch = machine.imports().get("torch")
    threads = torch.threads if torch is not None else None
    seen = f"torch computes with {threads} threads on {cpus} CPUs" if threads is not None else f"{cpus} CPUs"
    if set_otherwise:
        return warning(
            f"{seen}; {', '.join(set_otherwise)} in the environment",
            f"Cells compute with {cpus} threads whatever these say; `simulate`, preparations and programs of your own "
            f"obey them. `unset {' '.join(text.partition('=')[0] for text in set_otherwise)}`.",
        )
    if threads is None:
        raise Unsaid("torch does not import, so it cannot say with how many threads it computes")
    if threads > cpus:
        return warning(
            f"{seen}: more than can run at a time", f"Set OMP_NUM_THREADS={cpus} for programs of your own; cells do so."
        )
    # fewer is what torch chooses by itself where two CPUs share a core
    return ok(seen)


def thread_waiting(machine: Machine) -> Answer:
    """How long OpenMP's threads spin at a barrier."""
    spins = machine.environment.get("GOMP_SPINCOUNT", "").strip()
    if spins.lower().startswith("inf") or (spins.isdigit() and int(spins) > _LONG_SPIN):
        return warning(
            f"GOMP_SPINCOUNT={spins}: threads spin at barriers, and where something else wants the core a step takes a "
            "hundred times as long",
            "`unset GOMP_SPINCOUNT`: workers then spin for a short while only.",
        )
    return ok(f"GOMP_SPINCOUNT={spins}" if spins else "workers spin for a short while only")


def _quotas(machine: Machine) -> Iterator[float]:
    """CPUs granted by each control group above this process, infinite where there is no limit.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (`cpu.max`: quota or `max`, and period, in
    microseconds) and scheduler/sched-bwc.rst (version 1: -1 is no limit). In a container the path that
    `/proc/self/cgroup` names may be the host's; its own group is then the top one.
    """
    for controllers, path in _own_groups(machine):
        names = ["cpu.max"] if controllers == "" else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        base = _CGROUP if controllers == "" else f"{_CGROUP}/{controllers}"
        if not {"", "cpu"} & set(controllers.split(",")):
            continue
        for folder in (path, *path.parents):
            try:
                words = " ".join(machine.text(f"{base}/{folder.relative_to('/')}/{name}") for name in names).split()
                yield float("inf") if words[0] in ("max", "-1") else int(words[0]) / int(words[1])
            except Unsaid:
                continue
            except (ValueError, IndexError, ZeroDivisionError):
                raise Unsaid(f"{' and '.join(names)} hold something else than a quota and its period") from None
    # the kernel has no such file in the topmost group of a machine: nothing is limited there
    if any(machine.root.joinpath(_CGROUP, name).exists() for name in ("cgroup.controllers", "cpu", "cpu,cpuacct")):
        yield float("inf")


def _own_groups(machine: Machine) -> Iterator[tuple[str, PurePosixPath]]:
    """Controllers (none: version 2) and path of each control group of this process."""
    for line in machine.text("proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            yield parts[1], PurePosixPath(parts[2])
