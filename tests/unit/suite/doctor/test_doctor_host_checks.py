"""What the checks of processor, memory and disks say of a machine that is spoilt in one way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabricated_machine import MEMINFO, QUIET, healthy, says_nothing, with_gpu, write

from suite.doctor import cores, frequency, host_memory, load, numa, probes, storage
from suite.doctor.finding import Answer, Level, Unsaid
from suite.doctor.sample import Busy
from suite.records.scales import SCALES
from workloads.schema import DATASETS

CPU = "sys/devices/system/cpu"


@pytest.fixture
def machine(tmp_path):
    return healthy(tmp_path)


def sampled(machine, **values):
    return replace(machine, sample=lambda: replace(QUIET, **values))


def spoilt(machine, path, text):
    write(machine.root, path, text)
    return machine


# what else computes


def test_quiet_neighbours_are_well(machine):
    assert load.other_processes(machine).level is Level.OK


@pytest.mark.parametrize(("others_s", "level"), [(0.39, "ok"), (0.41, "warning"), (1.9, "warning"), (2.1, "problem")])
def test_others_share_of_the_cpus_decides(machine, others_s, level):
    # 2 s of 4 CPUs are 8 CPU seconds: 5 % and 25 % of them
    assert load.other_processes(sampled(machine, others_s=others_s)).level == level


def test_busy_neighbours_are_named_with_their_pids(machine):
    top = (Busy("chrome", 17, 1.5), Busy("make", 18, 0.5))
    answer = load.other_processes(sampled(machine, others_s=2.4, top=top))
    assert "30% of 4 CPUs" in answer.seen
    assert "chrome (pid 17, 75% of one), make (pid 18, 25% of one)" in answer.seen


@pytest.mark.parametrize(("average", "level"), [(4.0, "ok"), (4.1, "warning")])
def test_load_beyond_the_cpus_is_a_warning(machine, average, level):
    assert load.load_average(replace(machine, load_average=lambda: average)).level == level


@pytest.mark.parametrize(("stolen_s", "level"), [(0.0, "ok"), (0.09, "warning"), (0.9, "problem")])
def test_time_that_the_hypervisor_takes_is_told(machine, stolen_s, level):
    assert load.stolen_time(sampled(machine, stolen_s=stolen_s)).level == level


def test_kernel_without_a_count_of_stolen_time_says_so(machine):
    with pytest.raises(Unsaid, match="no stolen time"):
        load.stolen_time(sampled(machine, stolen_s=None))


def test_virtual_machine_is_noted_with_what_to_do(machine):
    assert load.virtual_machine(machine) == Answer(Level.OK, "no hypervisor")
    answer = load.virtual_machine(spoilt(machine, "proc/cpuinfo", "flags\t: fpu hypervisor avx2\n"))
    assert answer.level is Level.OK
    assert "--rounds" in answer.remedy


def test_processor_without_flags_does_not_tell_a_virtual_machine(machine):
    with pytest.raises(Unsaid, match="flags"):
        load.virtual_machine(spoilt(machine, "proc/cpuinfo", "Features : asimd\n"))


# clocks


def test_governor_other_than_performance_is_a_warning_with_the_command(machine):
    assert frequency.governor(machine).level is Level.OK
    answer = frequency.governor(spoilt(machine, f"{CPU}/cpu1/cpufreq/scaling_governor", "powersave\n"))
    assert answer.level is Level.WARNING
    assert "performance on 3 CPUs, powersave on 1 CPUs" in answer.seen
    assert "cpupower" in answer.remedy


def test_only_cpus_that_we_may_use_count(machine):
    spoilt(machine, f"{CPU}/cpu3/cpufreq/scaling_governor", "powersave\n")
    assert frequency.governor(replace(machine, affinity=lambda: frozenset({0, 1}))).level is Level.OK


@pytest.mark.parametrize(("path", "on", "off"), [("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")])
def test_turbo_is_a_warning_and_the_remedy_writes_the_other_value(machine, path, on, off):
    (machine.root / CPU / "intel_pstate/no_turbo").unlink()
    answer = frequency.turbo(spoilt(machine, f"{CPU}/{path}", on))
    assert answer.level is Level.WARNING
    assert f"echo {off} | sudo tee /{CPU}/{path}" in answer.remedy
    assert frequency.turbo(spoilt(machine, f"{CPU}/{path}", off)).level is Level.OK


@pytest.mark.parametrize(("khz", "level"), [("2200000", "ok"), ("1200000", "warning")])
def test_clock_far_below_the_highest_is_a_warning(machine, khz, level):
    for cpu in range(4):
        spoilt(machine, f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq", khz)
    assert frequency.clock(machine).level == level


def test_idle_cores_do_not_make_the_clock_low(machine):
    for cpu in range(1, 4):
        spoilt(machine, f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq", "800000")
    assert frequency.clock(machine).level is Level.OK


def test_clock_that_is_no_number_is_unknown(machine):
    with pytest.raises(Unsaid, match="no number"):
        frequency.clock(spoilt(machine, f"{CPU}/cpu0/cpufreq/scaling_cur_freq", "<unknown>"))


@pytest.mark.parametrize("check", [frequency.governor, frequency.turbo, frequency.clock])
def test_machine_without_cpufreq_is_unknown(tmp_path, machine, check):
    with pytest.raises(Unsaid, match="virtual machines"):
        check(replace(machine, root=tmp_path / "elsewhere"))


# cores


@pytest.mark.parametrize(
    ("files", "level", "seen"),
    [
        ({}, "ok", "none"),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, "ok", "none"),
        ({"sys/fs/cgroup/cpu.max": "400000 100000"}, "ok", "4.0 CPUs"),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, "problem", "1.5 CPUs but sees 4"),
        # the tightest of the groups above counts
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 1",
            },
            "problem",
            "2.0 CPUs",
        ),
        # version 1, under both names that distributions mount it by
        (
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu:/x",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
            "problem",
            "3.0 CPUs",
        ),
        (
            {
                "proc/self/cgroup": "1:cpu,cpuacct:/host/path",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            "ok",
            "none",
        ),
    ],
)
def test_quota_below_the_visible_cpus_is_a_problem(machine, files, level, seen):
    for path, text in files.items():
        spoilt(machine, path, text)
    answer = cores.cpu_quota(machine)
    assert answer.level == level
    assert seen in answer.seen


def test_remedy_for_a_quota_names_as_many_cpus_as_it_grants(machine):
    spoilt(machine, "sys/fs/cgroup/cpu.max", "250000 100000")
    answer = cores.cpu_quota(replace(machine, affinity=lambda: frozenset({4, 5, 6, 9})))
    assert "taskset -c 4-5`" in answer.remedy


def test_quota_that_makes_no_sense_is_unknown(machine):
    with pytest.raises(Unsaid, match=r"cpu\.max"):
        cores.cpu_quota(spoilt(machine, "sys/fs/cgroup/cpu.max", "lots"))


def test_machine_without_control_groups_is_unknown(machine):
    (machine.root / "sys/fs/cgroup/cgroup.controllers").unlink()
    with pytest.raises(Unsaid, match="no control group"):
        cores.cpu_quota(machine)


def test_part_of_a_machine_is_noted(machine):
    assert cores.affinity(machine) == Answer(Level.OK, "all 4 CPUs")
    answer = cores.affinity(replace(machine, affinity=lambda: frozenset({0, 1, 3})))
    assert answer.level is Level.OK
    assert answer.seen == "3 of 4 CPUs: 0-1,3"
    assert "3 CPUs" in answer.remedy


def test_two_threads_of_a_core_are_a_warning_that_names_one_each(machine):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        spoilt(machine, f"{CPU}/cpu{cpu}/topology/thread_siblings_list", siblings)
    answer = cores.hyper_threads(machine)
    assert answer.level is Level.WARNING
    assert "4 CPUs are 2 cores" in answer.seen
    assert "taskset -c 0-1 " in answer.remedy
    followed = cores.hyper_threads(replace(machine, affinity=lambda: frozenset({0, 1})))
    assert followed.level is Level.OK
    assert "keep them free" in followed.seen


def test_variables_that_ask_for_other_threads_are_a_warning(machine):
    assert cores.thread_settings(machine).level is Level.OK
    assert cores.thread_settings(replace(machine, environment={"OMP_NUM_THREADS": "4"})).level is Level.OK
    answer = cores.thread_settings(replace(machine, environment={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}))
    assert answer.level is Level.WARNING
    assert "OMP_NUM_THREADS=1, MKL_NUM_THREADS=2" in answer.seen
    assert "`unset OMP_NUM_THREADS MKL_NUM_THREADS`" in answer.remedy


def test_more_threads_than_cpus_are_a_warning(machine):
    imported = dict(machine.imports())
    imported["torch"] = replace(imported["torch"], threads=16)
    answer = cores.thread_settings(replace(machine, imports=lambda: imported))
    assert answer.level is Level.WARNING
    assert "16 threads on 4 CPUs" in answer.seen


def test_threads_of_a_torch_that_does_not_import_are_unknown(machine):
    with pytest.raises(Unsaid, match="torch does not import"):
        cores.thread_settings(replace(machine, imports=dict))


@pytest.mark.parametrize(
    ("spins", "level"), [("2000", "ok"), ("100000", "ok"), ("300000", "warning"), ("infinite", "warning")]
)
def test_long_spins_at_barriers_are_a_warning(machine, spins, level):
    assert cores.thread_waiting(replace(machine, environment={"GOMP_SPINCOUNT": spins})).level == level


def test_spins_that_nobody_set_are_well(machine):
    assert cores.thread_waiting(machine).level is Level.OK


# NUMA


def two_nodes(machine):
    spoilt(machine, "sys/devices/system/node/online", "0-1\n")
    spoilt(machine, "sys/devices/system/node/node0/cpulist", "0-1\n")
    return spoilt(machine, "sys/devices/system/node/node1/cpulist", "2-3\n")


def test_cpus_on_several_nodes_are_a_warning_with_the_command(machine):
    assert numa.numa(machine).level is Level.OK
    answer = numa.numa(two_nodes(machine))
    assert answer.level is Level.WARNING
    assert "numactl --cpunodebind=0 --membind=0" in answer.remedy
    bound = numa.numa(replace(machine, affinity=lambda: frozenset({2, 3})))
    assert bound == Answer(Level.OK, "all our CPUs are on node 1 of 2")


def test_node_of_memory_alone_is_no_node_to_bind_to(machine):
    spoilt(machine, "sys/devices/system/node/online", "0-1\n")
    spoilt(machine, "sys/devices/system/node/node1/cpulist", "\n")
    assert numa.numa(machine).level is Level.OK


def test_gpu_on_another_node_than_our_cpus_is_a_warning(machine):
    machine = with_gpu(machine)
    assert numa.gpu_node(machine).level is Level.OK
    two_nodes(machine)
    near = replace(machine, affinity=lambda: frozenset({0, 1}))
    far = replace(machine, affinity=lambda: frozenset({2, 3}))
    assert numa.gpu_node(near).level is Level.OK
    answer = numa.gpu_node(far)
    assert answer.level is Level.WARNING
    assert "node 0, our CPUs are on 1" in answer.seen
    assert "--cpunodebind=0" in answer.remedy


def test_gpu_whose_node_the_firmware_hides_is_unknown(machine):
    machine = two_nodes(with_gpu(machine))
    with pytest.raises(Unsaid, match="firmware"):
        numa.gpu_node(spoilt(machine, "sys/bus/pci/devices/0000:3b:00.0/numa_node", "-1\n"))


# memory


def available(machine, count):
    return replace(machine, available_bytes=lambda: count)


def test_memory_for_everything_is_well(machine):
    assert host_memory.memory(machine) == Answer(
        Level.OK, "400.0 GB available, enough for every dataset at every scale"
    )


def test_datasets_that_do_not_fit_at_full_scale_are_noted_with_their_need(machine):
    answer = host_memory.memory(available(machine, 30 * 10**9))
    assert answer.level is Level.OK
    needed = host_memory.needed_bytes(DATASETS["criteo_1tb"], SCALES["full"])
    assert f"criteo_1tb at scale full takes about {needed / 1e9:.1f} GB" in answer.seen
    assert "criteo_kaggle" not in answer.seen


def test_memory_too_small_for_scale_small_is_a_problem(machine):
    answer = host_memory.memory(available(machine, 10**8))
    assert answer.level is Level.PROBLEM
    assert "scale small" in answer.seen


def test_need_follows_rows_and_width(machine):
    kaggle = sum(rows for _, rows in DATASETS["criteo_kaggle"].categorical)
    assert host_memory.needed_bytes(DATASETS["criteo_kaggle"], SCALES["full"]) == kaggle * 128 * 4 * 5 // 4
    assert host_memory.needed_bytes(DATASETS["criteo_kaggle"], SCALES["small"]) == 1_000_000 * 32 * 4 * 5 // 4


def with_swap(machine, *, free_kb, swappiness=60):
    text = MEMINFO.replace("SwapTotal:             0", "SwapTotal: 4000000")
    text = text.replace("SwapFree:              0", f"SwapFree: {free_kb}")
    spoilt(machine, "proc/sys/vm/swappiness", str(swappiness))
    return spoilt(machine, "proc/meminfo", text)


def test_swap_in_use_is_a_warning(machine):
    assert host_memory.swap(machine) == Answer(Level.OK, "none")
    answer = host_memory.swap(with_swap(machine, free_kb=3_000_000))
    assert answer.level is Level.WARNING
    assert "1.0 GB of 4.1 GB in use, swappiness 60" in answer.seen


def test_unused_swap_is_noted_only_where_the_kernel_would_use_it(machine):
    assert "swappiness=1" in host_memory.swap(with_swap(machine, free_kb=4_000_000)).remedy
    assert host_memory.swap(with_swap(machine, free_kb=4_000_000, swappiness=1)).remedy == ""


def test_meminfo_without_swap_is_unknown(machine):
    with pytest.raises(Unsaid, match="no SwapTotal"):
        host_memory.swap(spoilt(machine, "proc/meminfo", "MemTotal: 5 kB\n"))


def limited(machine, *, address_space=None, locked=None):
    return replace(machine, limits=lambda: probes.Limits(address_space_bytes=address_space, locked_bytes=locked))


def test_limited_address_space_is_a_warning(machine):
    assert host_memory.memory_limits(machine).level is Level.OK
    answer = host_memory.memory_limits(limited(machine, address_space=8 * 10**9))
    assert answer.level is Level.WARNING
    assert "`ulimit -v` is 8.0 GB" in answer.seen


def test_strict_overcommit_is_a_warning_with_what_is_left(machine):
    answer = host_memory.memory_limits(spoilt(machine, "proc/sys/vm/overcommit_memory", "2"))
    assert answer.level is Level.WARNING
    assert "15.4 GB" in answer.seen  # 15,000,000 kB


def test_locked_memory_matters_with_a_device_only(machine):
    assert host_memory.locked_memory(machine).seen == "no limit"
    assert host_memory.locked_memory(limited(machine, locked=8 << 20)).remedy == ""
    assert "memlock" in host_memory.locked_memory(limited(with_gpu(machine), locked=8 << 20)).remedy


def test_files_left_in_shared_memory_are_a_warning(machine):
    assert host_memory.shared_memory(machine).level is Level.OK
    full = replace(machine, disk=lambda path: probes.Disk(16 * 10**9, 12 * 10**9))
    answer = host_memory.shared_memory(full)
    assert answer.level is Level.WARNING
    assert "4.0 GB of at most 16.0 GB" in answer.seen


@pytest.mark.parametrize(
    ("text", "level"),
    [("[always] madvise never", "ok"), ("always [madvise] never", "ok"), ("always madvise [never]", "warning")],
)
def test_huge_pages_that_are_forbidden_are_a_warning(machine, text, level):
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    assert host_memory.huge_pages(spoilt(machine, path, text)).level == level


def test_huge_pages_without_a_marked_setting_are_unknown(machine):
    with pytest.raises(Unsaid, match="marks no setting"):
        host_memory.huge_pages(spoilt(machine, "sys/kernel/mm/transparent_hugepage/enabled", "always never"))


# disks


DIRECTORIES = pytest.mark.parametrize("check", [storage.results_directory, storage.temporary_directory])


def mounted(machine, kind):
    text = f"27 1 254:0 / / rw - ext4 /dev/vda rw\n30 27 0:9 / {machine.root} rw shared:1 - {kind} source rw\n"
    return spoilt(machine, "proc/self/mountinfo", text)


@DIRECTORIES
@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", "ok"),
        ("xfs", "ok"),
        ("overlay", "ok"),
        ("tmpfs", "warning"),
        ("nfs4", "warning"),
        ("fuse.sshfs", "warning"),
    ],
)
def test_file_systems_in_memory_or_far_away_are_a_warning(machine, check, kind, level):
    answer = check(mounted(machine, kind))
    assert answer.level == level
    assert f"file system {kind}" in answer.seen


@DIRECTORIES
def test_full_disk_and_closed_directory_are_problems(machine, check):
    assert check(replace(machine, disk=lambda path: probes.Disk(10**12, 10**8))).level is Level.PROBLEM
    answer = check(replace(machine, writable=lambda path: False))
    assert answer.level is Level.PROBLEM
    assert "cannot be written" in answer.seen


def test_little_room_for_tables_on_disk_is_a_warning(machine):
    little = replace(machine, disk=lambda path: probes.Disk(10**12, 10**9))
    assert storage.temporary_directory(little).level is Level.WARNING
    assert storage.results_directory(little).level is Level.OK


def test_disk_of_unknown_kind_still_tells_its_room(machine):
    (machine.root / "proc/self/mountinfo").unlink()
    answer = storage.results_directory(machine)
    assert answer.level is Level.OK
    assert "500.0 GB free, file system unknown" in answer.seen


def test_deepest_and_latest_mount_holds_a_path(machine, tmp_path):
    deep = tmp_path / "with space"
    deep.mkdir()
    point = str(deep).replace(" ", "\\040")
    spoilt(
        machine,
        "proc/self/mountinfo",
        f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / {point} rw - xfs b rw\n3 1 0:3 / {tmp_path} rw - btrfs c rw\n"
        f"4 2 0:4 / {point} rw - tmpfs d rw\nnonsense\n",
    )
    assert storage.file_system(machine, deep / "not" / "yet" / "there") == "tmpfs"
    assert storage.file_system(machine, tmp_path) == "btrfs"
    assert storage.file_system(machine, tmp_path.parent) == "ext4"


# nothing at all


@pytest.mark.parametrize(
    "check", [load.virtual_machine, host_memory.swap, host_memory.huge_pages, numa.numa, storage.results_directory]
)
def test_machine_that_says_nothing_gives_a_reason(tmp_path, check):
    with pytest.raises(Unsaid):
        check(says_nothing(tmp_path))
