"""What each check says of a machine with one thing spoilt, and the facts as they are read for real."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fabricated_machine import CPU, VERSIONS, gpu, healthy, nvml, refused, write

from suite.doctor import machine as facts
from suite.doctor.examine import CHECKS, GPU_CHECKS, examine
from suite.doctor.finding import Level, Unsaid
from suite.doctor.machine import Gpu, Imports, Sample, import_all, open_gpu, this_machine, watch
from suite.doctor.storage import memory_groups, results_directory


@pytest.fixture
def read(tmp_path, monkeypatch):
    """A healthy machine, and the facts that its checks read."""
    return healthy(tmp_path, monkeypatch)


@pytest.fixture
def machine(read):
    return read[0]


def test_healthy_machine_is_well_in_every_respect(read):
    machine, read_facts = read
    findings = examine(machine)
    assert {name: finding.level for name, finding in findings.items()} == dict.fromkeys(CHECKS, Level.OK)
    read_facts.versions = CUDA
    with_gpu = examine(replace(machine, gpu=gpu(), imports=Imports(cuda="12.8", sees_gpu=True)))
    assert {name: finding.level for name, finding in with_gpu.items()} == dict.fromkeys(CHECKS | GPU_CHECKS, Level.OK)


CUDA = {"torch": "2.13.0+cu128", "torchrec": "1.8.0", "fbgemm-gpu": "1.8.0"}
GUESTS = [SimpleNamespace(pid=pid) for pid in (10**8, os.getpid())]
TAKEN = SimpleNamespace(total=8 * 10**10, used=2 * 10**9)
FACTS = [
    ("other processes", {"sample": Sample(0.06, 0.0, ("python (pid 7)",))}, "warning", "most of all python"),
    ("other processes", {"sample": Sample(0.25, 0.0)}, "problem", "25% of 4 CPUs"),
    ("stolen time", {"sample": Sample(0.0, 0.02)}, "warning", "took 2.0%"),
    ("cores", {"cpu_count": 8}, "ok", "4 of 8 CPUs"),
    ("memory", {"available_host_bytes": 3 * 10**10}, "ok", "criteo_1tb takes about 113.9 GB"),
    ("memory", {"available_host_bytes": 10**9}, "problem", "1.0 GB available"),
    ("swap", {"swapped_bytes": 10**9}, "warning", "1.0 GB lie in swap"),
    ("results directory", {"writable": False}, "problem", "cannot be written"),
    ("results directory", {"free_bytes": 10**8}, "problem", "0.1 GB free"),
    ("temporary directory", {"file_system": "tmpfs"}, "warning", "lie in memory"),
    ("temporary directory", {"file_system": "nfs4"}, "warning", "over the network"),
    ("temporary directory", {"file_system": "fuse.sshfs"}, "warning", "over the network"),
    ("matching packages", {"versions": CUDA | {"fbgemm-gpu": "1.7.0"}}, "problem", "belong fbgemm 1.8 and torch"),
    ("matching packages", {"versions": CUDA | {"torch": "2.14.0"}}, "problem", "belong fbgemm 1.9 and torchrec 1.9"),
    ("matching packages", {"versions": CUDA | {"torch": "2.15.0"}}, "warning", "none of 2.11, 2.12, 2.13, 2.14"),
    ("matching packages", {"versions": CUDA | VERSIONS}, "problem", "overwritten each other's files"),
    ("matching packages", {"versions": {"torch": "2.13.0"}}, "problem", "not installed: fbgemm-gpu, torchrec"),
    ("imports", {"imports": Imports(error="import torchrec: it broke")}, "problem", "import torchrec: it broke"),
    ("imports", {"imports": Imports(cuda="12.8")}, "ok", "torch is the build for CUDA"),
    ("imports", {"imports": Imports(cuda="12.8"), "gpu": gpu()}, "problem", "the other way round"),
    ("GPU", {"gpu": gpu()}, "problem", "torch is a CPU build"),
    ("GPU", {"gpu": gpu(), "imports": Imports(cuda="12.8")}, "problem", "built for CUDA 12.8"),
    ("GPU", {"gpu": Gpu(error="the driver is silent")}, "unknown", "the driver is silent"),
    ("GPU link", {"gpu": gpu(nvmlDeviceGetCurrPcieLinkWidth=4)}, "problem", "rows move at 25%"),
    ("GPU link", {"gpu": gpu(nvmlDeviceGetCurrPcieLinkWidth=0)}, "unknown", "may hide the bus"),
    ("GPU link", {"gpu": gpu(nvmlDeviceGetCurrPcieLinkWidth=refused)}, "unknown", "Not Supported"),
    ("GPU in use", {"gpu": gpu(nvmlDeviceGetComputeRunningProcesses=GUESTS)}, "problem", "on it: pid 100000000"),
    ("GPU in use", {"gpu": gpu(nvmlDeviceGetMemoryInfo=TAKEN)}, "warning", "2.0 of 80.0 GB"),
    ("GPU clocks", {"gpu": gpu(nvmlDeviceGetCurrentClocksEventReasons=0x41)}, "warning", "by heat, by the hardware"),
    ("C compiler", {"gpu": gpu(), "programs": ()}, "warning", "no C compiler: freq_cache[exchange=device]"),
    ("C compiler", {"gpu": gpu(), "headers": "absent"}, "warning", "absent/Python.h is missing"),
]


@pytest.mark.parametrize(("name", "spoilt", "level", "words"), FACTS, ids=[f"{row[0]}: {row[3]}" for row in FACTS])
def test_fact_that_spoils_figures_is_found_with_a_remedy(read, name, spoilt, level, words):
    machine, read_facts = read
    for fact in spoilt.keys() - vars(machine).keys():
        setattr(read_facts, fact, spoilt[fact])
    finding = examine(replace(machine, **{fact: spoilt[fact] for fact in spoilt if fact in vars(machine)}))[name]
    assert (finding.level, words in finding.seen) == (level, True), finding
    assert finding.remedy or level == "unknown"


def test_variable_that_slows_programs_down_is_a_problem(machine, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    finding = examine(machine)["variables"]
    assert (finding.level, finding.remedy) == (Level.PROBLEM, "`unset NUMBA_DISABLE_JIT`.")


@pytest.mark.parametrize(
    ("name", "path", "text", "level", "words"),
    [
        ("clock", f"{CPU}/cpu2/cpufreq/scaling_governor", "powersave\n", "warning", "the governor is powersave"),
        ("clock", f"{CPU}/intel_pstate/no_turbo", "0\n", "warning", "echo 1 | sudo tee /sys/devices"),
        ("clock", f"{CPU}/cpufreq/boost", "1\n", "warning", "echo 0 | sudo tee /sys/devices"),
        ("CPU quota", "sys/fs/cgroup/cpu.max", "250000 100000\n", "problem", "taskset -c 0,1`"),
        ("CPU quota", "sys/fs/cgroup/a.slice/b.scope/cpu.max", "50000 100000\n", "problem", "may use 0.5 CPUs"),
        ("cores", f"{CPU}/cpu3/topology/thread_siblings_list", "1\n", "warning", "taskset -c 0,1,2 "),
        ("NUMA", f"{CPU}/cpu3/node1/cpu3", "", "warning", "on nodes 0,1"),
    ],
)
def test_file_of_the_kernel_that_spoils_figures_is_found(machine, name, path, text, level, words):
    write(machine.root, path, text)
    finding = examine(machine)[name]
    assert (finding.level, words in finding.seen + finding.remedy) == (level, True), finding


def test_machine_of_several_nodes_is_bound_to_the_gpus(machine):
    write(machine.root, f"{CPU}/cpu3/node1/cpu3", "")
    assert "--cpunodebind=0 " in examine(machine)["NUMA"].remedy
    assert "--cpunodebind=1 --membind=1 " in examine(replace(machine, gpu=gpu()))["NUMA"].remedy


def test_files_that_are_missing_or_odd_are_unknown_and_the_rest_is_told(machine, tmp_path):
    write(machine.root, "sys/fs/cgroup/cpu.max", "nonsense")
    findings = examine(machine)
    assert next(iter(findings)) == "CPU quota", "worst first"
    assert findings["CPU quota"].seen.startswith("the check failed with ValueError")
    assert findings["cores"].level is Level.OK
    bare = examine(replace(machine, root=tmp_path / "absent"))
    assert [name for name, finding in bare.items() if finding.level is Level.UNKNOWN] == ["clock", "CPU quota", "cores"]


# the device


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine with NVIDIA's driver, where only the fabricated NVML answers."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "version").touch()
    monkeypatch.setattr(facts, "_DRIVER", tmp_path / "version")
    return lambda **replaced: monkeypatch.setitem(sys.modules, "pynvml", nvml(**replaced))


@pytest.mark.parametrize(("visible", "handle"), [("2,0", 2), ("GPU-1a", "GPU-1a")])
def test_first_visible_device_is_the_one(driver, monkeypatch, visible, handle):
    driver()
    assert open_gpu().handle == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_gpu().handle == handle


def test_compiler_that_is_named_and_is_none_is_found(machine, monkeypatch):
    monkeypatch.setenv("CC", "gcc-99")
    assert examine(replace(machine, gpu=gpu()))["C compiler"].seen.startswith("CC names gcc-99, which is no program")
    monkeypatch.setenv("CC", "gcc")
    assert examine(replace(machine, gpu=gpu()))["C compiler"].level is Level.OK


def test_hidden_or_absent_device_is_none_and_a_silent_driver_is_told(driver, monkeypatch, tmp_path):
    driver(nvmlInit=refused)
    assert "Not Supported" in open_gpu().error
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is missing" in open_gpu().error
    monkeypatch.setattr(facts, "_DRIVER", tmp_path / "absent")
    assert open_gpu() is None
    driver(nvmlInit=refused)
    assert open_gpu() is None
    driver()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert open_gpu() is None


def test_calls_are_those_of_the_real_bindings():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py comes with the CUDA requirements")
    assert [name for name in vars(nvml()) if not hasattr(pynvml, name)] == []


# facts, as they are read for real


def test_busy_neighbour_is_found():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            sample = watch(0.5)
            took = psutil.Process(neighbour.pid).cpu_times().user
        finally:
            neighbour.kill()
    assert took > 0
    assert 0 < sample.taken <= 1
    assert sample.top


def test_import_that_fails_ends_its_process_or_hangs_is_told_under_its_name(tmp_path, monkeypatch):
    (tmp_path / "whole_module.py").write_text("print('chatter')\n")
    (tmp_path / "broken_module.py").write_text("raise OSError('first line\\nlibrary.so: cannot open')\n")
    (tmp_path / "killed_module.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "endless_module.py").write_text("import time\ntime.sleep(600)\n")
    torch = "class version: cuda = '12.8'\nclass cuda: is_available = lambda: True\n"
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert import_all(["whole_module", "torch"]) == Imports(cuda="12.8", sees_gpu=True)
    assert import_all(["whole_module", "broken_module"]).error == "import broken_module: library.so: cannot open"
    assert import_all(["killed_module"]).error == "import killed_module: it ended the process with code -11"
    assert import_all(["endless_module"], timeout_s=0.5).error == "the imports take more than 0.5 s"


def test_another_process_than_this_tries_to_be_held(monkeypatch):
    before = Path("/proc/self/cgroup").read_text()
    hold = memory_groups(None)
    assert hold.seen.startswith("can be made (memory control group, version") or hold.remedy
    assert Path("/proc/self/cgroup").read_text() == before
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(Unsaid, match="the attempt to make one failed"):
        memory_groups(None)


def test_directory_that_would_be_made_is_as_writable_as_the_one_above(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = results_directory(None)
    assert found.seen.startswith("results: ")
    assert "cannot be written" not in found.seen
    assert "file system unknown" not in found.seen
    assert not (tmp_path / "results").exists()


def test_this_machine_is_examined_without_a_check_that_fails(monkeypatch):
    monkeypatch.setattr(facts, "import_all", Imports)  # takes seconds; tests of the pages run the command as it is
    findings = examine(this_machine(seconds=0.1))
    assert findings.keys() >= CHECKS.keys()
    assert not [finding for finding in findings.values() if "the check failed" in finding.seen]
