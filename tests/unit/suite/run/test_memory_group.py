"""How a memory control group is found, made and limited: on fabricated trees, and for real where one can be made."""

import math
import mmap
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from suite.run import memory_group
from suite.run.memory_group import MemoryGroup, group_of, remove_stale_groups
from suite.run.resources import CgroupUnavailable, granted_cpus, kernel_kills
from tests.faults.cells import needs_memory_groups

NAME = f"embedding-suite-{os.getpid()}"
DEAD = 4194305  # above the largest number that Linux gives a process
MIB = 1 << 20


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def version_1(tmp_path):
    """A container that sees its own group `/docker/abc` as the topmost."""
    write(tmp_path, "proc/self/cgroup", "4:cpu,memory:/docker/abc\n1:name=systemd:/\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def version_2(tmp_path):
    """A container with a namespace of its own; two processes are in its topmost group."""
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
    write(tmp_path, "sys/fs/cgroup/cgroup.subtree_control", "\n")
    write(tmp_path, "sys/fs/cgroup/cgroup.events", "populated 1\n")
    write(tmp_path, "sys/fs/cgroup/cgroup.procs", "7\n8\n")
    return tmp_path


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a\n", {"a/cpu.max": "100000 100000\n", "cpu.max": "50000 100000\n"}, 0.5),
        ("0::/docker/abc\n", {"cpu.max": "300000 100000\n"}, 3),
        (
            "2:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "150000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            1.5,
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
    ],
)
def test_cpus_that_quotas_grant(tmp_path, groups, files, cpus):
    write(tmp_path, "proc/self/cgroup", groups)
    for path, text in files.items():
        write(tmp_path, f"sys/fs/cgroup/{path}", text)
    assert granted_cpus(tmp_path) == cpus
    assert granted_cpus(tmp_path / "a kernel without control groups") == math.inf


def test_version_1_is_entered_limited_with_swap_read_and_left(version_1):
    group, own = MemoryGroup(root=version_1), version_1 / "sys/fs/cgroup/memory"
    write(own, f"{NAME}/memory.memsw.limit_in_bytes", "0")
    write(own, f"{NAME}/memory.usage_in_bytes", "900\n")
    write(own, f"{NAME}/memory.stat", "total_cache 500\ntotal_active_file 100\ntotal_inactive_file 200\n")
    write(own, f"{NAME}/memory.max_usage_in_bytes", "950\n")
    with group:
        group.limit(1000)
        folder = own / NAME
        assert (folder / "cgroup.procs").read_text() == str(os.getpid())
        assert (folder / "memory.limit_in_bytes").read_text() == "1000"
        assert (folder / "memory.memsw.limit_in_bytes").read_text() == "1000"
        assert (group.how, group.usage_bytes, group.file_bytes, group.peak_bytes) == (
            "memory control group, version 1",
            900,
            300,
            950,
        )
    assert (own / "cgroup.procs").read_text() == str(os.getpid())


def test_version_2_moves_its_neighbours_into_a_leaf_before_it_counts_below(version_2):
    group, top = MemoryGroup(root=version_2), version_2 / "sys/fs/cgroup"
    assert (top / "embedding-suite-main/cgroup.procs").read_text() == "8"  # a file keeps the last of both
    assert (top / "cgroup.subtree_control").read_text() == "+memory"
    write(top, f"{NAME}/memory.swap.max", "max")
    write(top, f"{NAME}/memory.current", "900\n")
    write(top, f"{NAME}/memory.stat", "file 500\nactive_file 100\ninactive_file 200\n")
    with group:
        group.limit(1000)
        told = {name: (top / NAME / name).read_text() for name in ("memory.swap.max", "memory.max", "memory.high")}
        assert told == {"memory.swap.max": "0", "memory.max": "1000", "memory.high": "max"}
        assert (group.how, group.file_bytes, group.peak_bytes) == ("memory control group, version 2", 300, None)
    assert (top / "embedding-suite-main/cgroup.procs").read_text() == str(os.getpid())


def test_limit_of_version_2_that_would_kill_is_refused(version_2, monkeypatch):
    monkeypatch.setattr(memory_group, "_PATIENCE_S", 0)
    group, top = MemoryGroup(root=version_2), version_2 / "sys/fs/cgroup"
    write(top, f"{NAME}/memory.current", "3000000\n")
    with pytest.raises(CgroupUnavailable, match=r"3 MB are in use and cannot go, the limit is 2 MB; .* --host-budget"):
        group.limit(2_000_000)
    assert not (top / NAME / "memory.max").exists()
    assert (top / NAME / "memory.high").read_text() == "max"


def test_group_of_systemd_is_left_alone_unless_it_is_delegated(version_2, monkeypatch):
    (version_2 / "run/systemd/system").mkdir(parents=True)
    with pytest.raises(CgroupUnavailable, match=r"systemd owns .*; use `systemd-run --user --scope -p Delegate=yes"):
        MemoryGroup(root=version_2)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1" if name == "user.delegate" else b"")
    MemoryGroup(root=version_2)


def test_what_stands_against_a_group_is_told_with_a_remedy(version_1, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CgroupUnavailable, match=r"below .*/memory \(Permission denied\); run as root, .*memory/mine"):
        MemoryGroup(root=version_1)


def test_group_without_the_controller_is_told(version_2):
    write(version_2, "sys/fs/cgroup/cgroup.controllers", "cpu pids\n")
    with pytest.raises(CgroupUnavailable, match=r"its cgroup.controllers lack it; .*Delegate=yes"):
        MemoryGroup(root=version_2)
    with pytest.raises(CgroupUnavailable, match="no control group that counts memory can be seen; on Linux mount it"):
        MemoryGroup(root=version_2 / "absent")


def test_groups_of_processes_that_are_gone_are_removed_and_no_others(version_1):
    own = version_1 / "sys/fs/cgroup/memory"
    for name in (f"embedding-suite-{DEAD}", f"embedding-suite-{DEAD + 1}/used", NAME, "embedding-suite-main", "other"):
        (own / name).mkdir(parents=True)
    assert remove_stale_groups(root=version_1) == [f"embedding-suite-{DEAD}"]
    assert not (own / f"embedding-suite-{DEAD}").exists()
    assert (own / NAME).exists()


# for real


@pytest.fixture
def real():
    """Nothing is left behind. Skips where no group can be made."""
    needs_memory_groups()
    yield
    remove_stale_groups()


def spawned(work, *arguments):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    return process, ours


def read_a_file_of_256_mib(pipe, folder):
    with MemoryGroup() as group:
        group.reset_peak()
        group.limit(group.usage_bytes + 64 * MIB)
        block = os.urandom(MIB)
        with (folder / "file").open("wb") as stream:
            stream.writelines([block] * 256)
        with (folder / "file").open("rb") as stream:
            while stream.read(MIB):
                pass
        pipe.send((group.file_bytes, group.usage_bytes))


def take_256_mib(pipe):
    with MemoryGroup() as group:
        group.limit(group.usage_bytes + 64 * MIB)
        pipe.send(os.getpid())
        with mmap.mmap(-1, 256 * MIB) as memory:
            for at in range(0, len(memory), mmap.PAGESIZE):
                memory[at] = 1
        pipe.send("survived")


@pytest.mark.usefixtures("real")
def test_page_cache_of_a_held_process_stays_within_its_limit(tmp_path):
    process, pipe = spawned(read_a_file_of_256_mib, tmp_path)
    in_files, in_all = pipe.recv()
    process.join()
    assert 16 * MIB < in_files < 72 * MIB
    assert in_files <= in_all
    assert process.exitcode == 0


@pytest.mark.usefixtures("real")
def test_held_process_that_takes_more_is_killed_and_counted():
    before = kernel_kills()
    process, pipe = spawned(take_256_mib)
    pid = pipe.recv()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(EOFError):
        pipe.recv()
    assert kernel_kills() > before
    remove_stale_groups()
    assert not group_of(pid).exists()
