"""Checks: where records and temporary files go."""

from __future__ import annotations

from pathlib import Path

from suite.doctor.finding import Answer, Unsaid, ok, problem, warning
from suite.doctor.machine import Machine
from suite.doctor.probes import existing

_IN_MEMORY = ("tmpfs", "ramfs")
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "glusterfs",
    "virtiofs",
)
_NETWORK_FUSE = (
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.rclone",
    "fuse.juicefs",
    "fuse.ceph",
)
_LEAST_BYTES, _FEW_BYTES = 200 * 10**6, 5 * 10**9


def results_directory(machine: Machine) -> Answer:
    """Room and kind of file system for records."""
    seen, kind, free = _described(machine, machine.results)
    if not machine.writable(machine.results):
        return problem(f"{seen}; it cannot be written", "Start in a directory of yours, or name one with --out.")
    if free < _LEAST_BYTES:
        return problem(seen, "Free some space, or name another directory with --out.")
    if kind in _IN_MEMORY:
        return warning(seen + ": records are gone after a restart", "Name a directory on a disk with --out.")
    if _is_network(kind):
        return warning(
            seen + ": its locks may not hold between machines, and writing depends on the network",
            "Name a local directory with --out and copy the records afterwards.",
        )
    return ok(seen)


def temporary_directory(machine: Machine) -> Answer:
    """Room and kind of file system for tables on disk and other temporary files."""
    seen, kind, free = _described(machine, machine.temporary)
    if not machine.writable(machine.temporary):
        return problem(f"{seen}; it cannot be written", "Set TMPDIR to a directory of yours on a local disk.")
    if free < _LEAST_BYTES:
        return problem(seen, "Free some space, or set TMPDIR to a directory on a disk with room.")
    if kind in _IN_MEMORY:
        return warning(
            seen + ": tables 'on disk' would lie in memory, be as fast as memory, and take it from the rest",
            "Set TMPDIR to a directory on a local disk.",
        )
    if _is_network(kind):
        return warning(
            seen + ": tables on disk would be timed over the network", "Set TMPDIR to a directory on a local disk."
        )
    if free < _FEW_BYTES:
        return warning(seen, "Tables on disk may not fit: set TMPDIR to a directory on a disk with room.")
    return ok(seen)


def file_system(machine: Machine, path: Path) -> str:
    """Type of the file system that holds a path, as in `ext4`.

    Source: proc_pid_mountinfo(5): the fifth field is where it is mounted, and the first after the dash its type.
    Later mounts hide earlier ones.
    """
    path = existing(path).resolve()
    best, kind = -1, ""
    for line in machine.text("proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) < 5 or not rest:
            continue
        # spaces and the like are written as octal numbers
        point = Path(words[4].encode().decode("unicode_escape"))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split()[0]
    if not kind:
        raise Unsaid(f"/proc/self/mountinfo lists no file system that holds {path}")
    return kind


def _described(machine: Machine, path: Path) -> tuple[str, str, int]:
    disk = machine.disk(path)
    try:
        kind = file_system(machine, path)
    except Unsaid:
        kind = "unknown"
    return f"{path}: {disk.free_bytes / 1e9:.1f} GB free, file system {kind}", kind, disk.free_bytes


def _is_network(kind: str) -> bool:
    return kind in _NETWORK or kind in _NETWORK_FUSE
