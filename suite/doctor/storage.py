"""Checks: whether tables fit in memory and stay there, and where records and temporary files go."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from suite.doctor.finding import Finding, Unsaid, ok, problem, warning
from suite.doctor.machine import Machine
from suite.records.scales import FULL, HOST_OVERHEAD
from suite.run.drive import IN_MEMORY, file_system
from suite.run.memory_probes import available_host_bytes
from workloads.schema import DATASETS

_LEAST_MEMORY_BYTES = 2 * 10**9
_SWAPPED_BYTES = 64 << 20
_LEAST_BYTES = 10**9
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "virtiofs")
_HOLD = """
from suite.run.control_groups import CgroupUnavailable
from suite.run.memory_group import MemoryGroup
try:
    with MemoryGroup.make() as group:
        group.enter()
        group.limit(group.usage_bytes + (1 << 30))
        print(f"can be made ({group.how})")
except CgroupUnavailable as cannot:
    print(f"cannot be made: {cannot.why}")
    print(f"Only --tier disk needs one, for its --host-budget: {cannot.remedy}.")
"""
_HOLD_TIMEOUT_S = 60.0


def memory(_: Machine) -> Finding:
    """Available memory beside what the tables of published sizes take."""
    available_bytes = available_host_bytes()
    seen = f"{available_bytes / 1e9:.1f} GB available"
    if available_bytes < _LEAST_MEMORY_BYTES:
        return problem(seen, "Free memory, grant the container more, or measure at --scale smoke.")
    row_bytes = FULL.embedding_dim * 4 * HOST_OVERHEAD
    needs = {schema.name: row_bytes * schema.table_rows for schema in DATASETS.values()}
    lacking = [f"{name} takes about {n / 1e9:.1f} GB" for name, n in needs.items() if n > available_bytes]
    if not lacking:
        return ok(f"{seen}, enough for every dataset at every scale")
    return ok(
        f"{seen}; at --scale full {', '.join(lacking)}",
        "Scale small fits. For full: a larger machine, a smaller --embedding-dim, or tables on disk "
        "(`--systems 'freq_cache[tier=file]'`).",
    )


def swap(_: Machine) -> Finding:
    """Whether rows may be paged out."""
    swapped_bytes = psutil.swap_memory().used
    seen = f"{swapped_bytes / 1e9:.1f} GB lie in swap"
    if swapped_bytes < _SWAPPED_BYTES:
        return ok(seen)
    return warning(
        seen,
        "Memory ran short before; a table that is paged in again is timed with the disk. End what took it, then "
        "`sudo swapoff -a && sudo swapon -a`.",
    )


def memory_groups(_: Machine) -> Finding:
    """Whether a cell of `--tier disk` can be held to its host budget.

    Another process than this tries: under systemd it cannot go back to where it was.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _HOLD], capture_output=True, text=True, timeout=_HOLD_TIMEOUT_S, check=True
        )
    except subprocess.SubprocessError as error:
        raise Unsaid(f"the attempt to make one failed ({error}): run doctor again, on an idle machine") from None
    return ok(*done.stdout.splitlines())


def results_directory(_: Machine) -> Finding:
    """Room and kind of file system for records."""
    return _directory(Path("results"), "Name a directory on a local disk with --out.")


def temporary_directory(_: Machine) -> Finding:
    """Room and kind of file system for tables on disk and other temporary files."""
    return _directory(Path(tempfile.gettempdir()), "Set TMPDIR to a directory on a local disk.")


def _directory(path: Path, remedy: str) -> Finding:
    """What is to be said of a directory, or of the nearest one above it that is there."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists()).resolve()
    free_bytes, kind = shutil.disk_usage(there).free, file_system(there)
    seen = f"{path}: {free_bytes / 1e9:.1f} GB free, file system {kind}"
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(f"{seen}; it cannot be written", remedy)
    if free_bytes < _LEAST_BYTES:
        return problem(seen, f"Free some space. {remedy}")
    if kind in IN_MEMORY:
        return warning(f"{seen}: tables 'on disk' would lie in memory, records are gone after a restart", remedy)
    if kind in _NETWORK or kind.startswith("fuse."):
        return warning(f"{seen}: tables on disk would be timed over the network, locks may not hold", remedy)
    return ok(seen)
