"""Checks: whether tables fit in memory, and stay there."""

from __future__ import annotations

from suite.doctor.finding import Answer, Unsaid, ok, problem, warning
from suite.doctor.machine import Machine
from suite.records.scales import SCALES, Scale
from workloads.schema import DATASETS, DatasetSchema

_OVERHEAD = 1.25
"""Memory of a run per byte of its tables: the share that `suite.run.plan` counts with."""
_SWAPPED_WARNING = 64 << 20
_SHARED_WARNING = 0.05
_ENOUGH_LOCKED = 1 << 30
_SHM = "dev/shm"


def memory(machine: Machine) -> Answer:
    """Available memory beside what the tables of each scale take."""
    available = machine.available_bytes()
    needs = {
        (scale.name, schema.name): needed_bytes(schema, scale)
        for scale in SCALES.values()
        for schema in DATASETS.values()
    }
    lacking = {name: needed for name, needed in needs.items() if needed > available}
    seen = f"{_gb(available)} available"
    if not lacking:
        return ok(f"{seen}, enough for every dataset at every scale")
    small = [name for name in lacking if name[0] != "full"]
    words = ", ".join(f"{data} at scale {scale} takes about {_gb(needs[scale, data])}" for scale, data in lacking)
    if small:
        return problem(f"{seen}; {words}", "Free memory, grant the container more, or measure at scale smoke only.")
    return ok(
        f"{seen}; {words}",
        "Scale small fits. For full: a larger machine, a smaller --embedding-dim, or tables on disk "
        "(`--systems 'freq_cache[tier=file]'`).",
    )


def needed_bytes(schema: DatasetSchema, scale: Scale) -> int:
    """Host memory that a run at this scale takes, about."""
    rows = sum(rows for _, rows in schema.categorical)
    if scale.max_rows is not None:
        rows = min(rows, scale.max_rows)
    return int(rows * scale.embedding_dim * 4 * _OVERHEAD)


def swap(machine: Machine) -> Answer:
    """Whether rows may be paged out."""
    total, free = machine.memory_entry("SwapTotal"), machine.memory_entry("SwapFree")
    if total == 0:
        return ok("none")
    used, swappiness = total - free, machine.number("proc/sys/vm/swappiness")
    seen = f"{_gb(used)} of {_gb(total)} in use, swappiness {swappiness}"
    if used >= _SWAPPED_WARNING:
        return warning(
            seen,
            "Memory ran short before; a table that is paged in again is timed with the disk. End what took it, then "
            "`sudo swapoff -a && sudo swapon -a`.",
        )
    if swappiness > 10:
        return ok(
            seen, "Tables that fill most of the memory may be paged out: `sudo sysctl vm.swappiness=1` while measuring."
        )
    return ok(seen)


def memory_limits(machine: Machine) -> Answer:
    """Limits on address space, which a worker meets long before memory runs out."""
    limit = machine.limits().address_space_bytes
    if limit is not None:
        return warning(
            f"`ulimit -v` is {_gb(limit)}: CUDA and compiled loops reserve far more address space than they use",
            "`ulimit -v unlimited`; the suite itself ends a cell that takes too much resident memory.",
        )
    if machine.number("proc/sys/vm/overcommit_memory") != 2:
        return ok("none")
    left = machine.memory_entry("CommitLimit") - machine.memory_entry("Committed_AS")
    return warning(
        f"the kernel promises no memory that it does not have (vm.overcommit_memory=2), {_gb(max(0, left))} are left",
        "CUDA and sparse tables reserve more than they use: `sudo sysctl vm.overcommit_memory=0` while measuring.",
    )


def locked_memory(machine: Machine) -> Answer:
    """Memory that a process may lock; staging for a CUDA device is pinned."""
    limit = machine.limits().locked_bytes
    if limit is None or limit >= _ENOUGH_LOCKED:
        return ok("no limit" if limit is None else _gb(limit))
    seen = f"`ulimit -l` is {_gb(limit)}"
    if machine.gpu() is None:
        return ok(seen + ", which matters with a CUDA device only")
    return ok(
        seen,
        "The NVIDIA driver pins memory by itself; should cudaHostAlloc fail all the same: `ulimit -l unlimited`, or "
        "`docker run --ulimit memlock=-1`.",
    )


def shared_memory(machine: Machine) -> Answer:
    """What lies in /dev/shm takes memory. The suite's producers do not use it: their memory has no name."""
    disk, total = machine.disk(machine.root / _SHM), machine.memory_entry("MemTotal")
    used = disk.total_bytes - disk.free_bytes
    seen = f"/dev/shm holds {_gb(used)} of at most {_gb(disk.total_bytes)}"
    if used >= _SHARED_WARNING * total:
        return warning(seen, "That is memory: see `ls -l /dev/shm`, and remove what ended programs left behind.")
    return ok(seen + "; batches do not go through it")


def huge_pages(machine: Machine) -> Answer:
    """Whether large tables may use pages of 2 MiB."""
    text = machine.text("sys/kernel/mm/transparent_hugepage/enabled")
    setting = text.partition("[")[2].partition("]")[0]
    if not setting:
        raise Unsaid(f"transparent_hugepage/enabled holds {text[:40]!r}, which marks no setting")
    if setting == "never":
        return warning(
            "never: large tables are looked up through pages of 4 KiB, which miss in the TLB",
            "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`; figures of machines that differ in "
            "this are not comparable.",
        )
    return ok(setting)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 5e7 else f"{count / 1e6:.1f} MB"
