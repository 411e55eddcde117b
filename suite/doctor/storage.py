"""Checks: whether tables fit in memory and stay there, and where records and temporary files go."""

from suite.doctor.finding import Finding, ok, problem, warning
from suite.doctor.machine import Disk, Machine
from suite.records.scales import FULL
from suite.run.drive import IN_MEMORY
from workloads.schema import DATASETS

_OVERHEAD = 1.25
"""Memory of a run per byte of its tables: the share that `suite.run.plan` counts with."""
_LEAST_MEMORY_BYTES = 2 * 10**9
_SWAPPED_BYTES = 64 << 20
_LEAST_BYTES = 10**9
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "virtiofs")


def memory(machine: Machine) -> Finding:
    """Available memory beside what the tables of published sizes take."""
    seen = f"{machine.available_bytes / 1e9:.1f} GB available"
    if machine.available_bytes < _LEAST_MEMORY_BYTES:
        return problem(seen, "Free memory, grant the container more, or measure at --scale smoke.")
    row_bytes = FULL.embedding_dim * 4 * _OVERHEAD
    needs = {schema.name: row_bytes * sum(rows for _, rows in schema.categorical) for schema in DATASETS.values()}
    lacking = [f"{name} takes about {n / 1e9:.1f} GB" for name, n in needs.items() if n > machine.available_bytes]
    if not lacking:
        return ok(f"{seen}, enough for every dataset at every scale")
    return ok(
        f"{seen}; at --scale full {', '.join(lacking)}",
        "Scale small fits. For full: a larger machine, a smaller --embedding-dim, or tables on disk "
        "(`--systems 'freq_cache[tier=file]'`).",
    )


def swap(machine: Machine) -> Finding:
    """Whether rows may be paged out."""
    seen = f"{machine.swapped_bytes / 1e9:.1f} GB lie in swap"
    if machine.swapped_bytes < _SWAPPED_BYTES:
        return ok(seen)
    return warning(
        seen,
        "Memory ran short before; a table that is paged in again is timed with the disk. End what took it, then "
        "`sudo swapoff -a && sudo swapon -a`.",
    )


def memory_groups(machine: Machine) -> Finding:
    """Whether a cell of `--tier disk` can be held to its host budget."""
    hold = machine.hold
    if hold.how:
        return ok(f"can be made ({hold.how})")
    return ok(f"cannot be made: {hold.why}", f"Only --tier disk needs one, for its --host-budget: {hold.remedy}.")


def results_directory(machine: Machine) -> Finding:
    """Room and kind of file system for records."""
    return _directory(machine.results, "Name a directory on a local disk with --out.")


def temporary_directory(machine: Machine) -> Finding:
    """Room and kind of file system for tables on disk and other temporary files."""
    return _directory(machine.temporary, "Set TMPDIR to a directory on a local disk.")


def _directory(disk: Disk, remedy: str) -> Finding:
    seen = f"{disk.path}: {disk.free_bytes / 1e9:.1f} GB free, file system {disk.kind}"
    if not disk.writable:
        return problem(f"{seen}; it cannot be written", remedy)
    if disk.free_bytes < _LEAST_BYTES:
        return problem(seen, f"Free some space. {remedy}")
    if disk.kind in IN_MEMORY:
        return warning(f"{seen}: tables 'on disk' would lie in memory, records are gone after a restart", remedy)
    if disk.kind in _NETWORK or disk.kind.startswith("fuse."):
        return warning(f"{seen}: tables on disk would be timed over the network, locks may not hold", remedy)
    return ok(seen)
