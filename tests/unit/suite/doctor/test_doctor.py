"""What each check says of a machine with one thing spoilt, a machine as it is read for real, and the command line."""

import itertools
import os
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from suite import doctor
from suite.__main__ import app
from suite.doctor import Level, examine, load, ok, problem, unknown, warning
from suite.records.environment import VIRTUAL_DEVICE, Gpu
from suite.records.measured import Conditions, MachineState

CPU = "sys/devices/system/cpu"
VERSIONS = {"torch": "2.13.0+cpu", "torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.8.0"}
CUDA = {"torch": "2.13.0+cu128", "torchrec": "1.8.0", "fbgemm-gpu": "1.8.0"}


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A healthy machine of four cores; tests spoil one thing at a time."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    for cpu in range(4):
        write(tmp_path, f"{CPU}/cpu{cpu}/cpufreq/scaling_governor", "performance\n")
    write(tmp_path, "proc/self/cgroup", "0::/a.slice/b.scope\n")
    write(tmp_path, "sys/fs/cgroup/a.slice/cpu.max", "max 100000\n")
    return tmp_path


def write(folder, path, text):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def expect(finding, level, words):
    """A finding is of a level and says something; one to act on has a remedy."""
    assert finding.remedy or finding.level in (Level.UNKNOWN, Level.OK), finding
    assert (finding.level.value, words in finding.seen + finding.remedy) == (level, True), finding


@pytest.mark.parametrize(
    ("taken", "stolen", "level", "words"),
    [
        (0.01, 0.0, "ok", "others take 1% of 4 CPUs"),
        (0.06, 0.0, "warning", "Stop them"),
        (0.25, 0.0, "problem", "25% of 4 CPUs"),
        (0.0, 0.02, "warning", "a hypervisor 2.0%"),
    ],
)
def test_load_of_others_spoils_figures(monkeypatch, taken, stolen, level, words):
    idle = MachineState()
    seen = Conditions(start=idle, end=idle, others_cpu_share=taken, stolen_cpu_share=stolen)
    monkeypatch.setattr(doctor, "MachineMonitor", lambda *, cuda: SimpleNamespace(conditions=lambda: seen))
    expect(load(seconds=0), level, words)


@pytest.mark.parametrize(("slowdown", "level"), [(1.0, "ok"), (1.1, "ok"), (1.4, "warning")])
def test_bouts_in_which_the_machine_is_slower_spoil_figures(slowdown, level):
    """Half a second fast, half a second slow, a hiccup of 50 ms now and then."""
    now, calls = 0.0, itertools.count(1)

    def clock():
        nonlocal now
        now += 0.002 * (slowdown if now % 1 > 0.5 else 1) + 0.05 * (next(calls) % 100 == 0)
        return now

    expect(doctor.pace(seconds=4, clock=clock), level, f"takes {slowdown:.2f} times as long")


GOVERNOR = f"{CPU}/cpu2/cpufreq/scaling_governor"


@pytest.mark.parametrize(
    ("check", "path", "text", "level", "words"),
    [
        (doctor.governor, "unrelated", "", "ok", "governor performance"),
        (doctor.governor, GOVERNOR, "powersave\n", "warning", "the governor is powersave"),
        (doctor.cpu_quota, "unrelated", "", "ok", "no quota"),
        (doctor.cpu_quota, "sys/fs/cgroup/cpu.max", "250000 100000\n", "problem", "taskset -c 0,1`"),
        (doctor.cpu_quota, "sys/fs/cgroup/a.slice/b.scope/cpu.max", "50000 100000\n", "problem", "may use 0.5 CPUs"),
    ],
)
def test_file_of_the_kernel_that_spoils_figures_is_found(machine, check, path, text, level, words):
    write(machine, path, text)
    expect(check(machine), level, words)
    expect(doctor.governor(machine / "absent"), "unknown", "the kernel controls no clock here")


@pytest.mark.parametrize(
    ("free_bytes", "kind", "writable", "level", "words"),
    [
        (10**12, "ext4", True, "ok", "1000.0 GB free"),
        (10**8, "ext4", True, "problem", "Free some space"),
        (10**12, "tmpfs", True, "warning", "lie in memory"),
        (10**12, "ext4", False, "problem", "cannot be written"),
    ],
)
def test_directory_needs_room_on_a_disk(monkeypatch, tmp_path, free_bytes, kind, writable, level, words):
    monkeypatch.setattr(doctor, "file_system", lambda _: kind)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    monkeypatch.setattr("os.access", lambda *_: writable)
    expect(doctor.room(tmp_path / "not" / "there", "Name another."), level, words)
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("versions", "level", "words"),
    [
        (VERSIONS, "ok", "torch 2.13.0+cpu"),
        (CUDA, "ok", "fbgemm-gpu 1.8.0"),
        (CUDA | {"torch": "2.14.0"}, "problem", "belong together: 2.11 with 1.6 and 1.6; "),
        (CUDA | {"torch": "2.15.0"}, "warning", "none of 2.11, 2.12, 2.13, 2.14"),
        (CUDA | VERSIONS, "problem", "overwritten each other's files"),
        ({"torch": "2.13.0"}, "problem", "torch 2.13.0: of torch, fbgemm and torchrec these"),
        ({}, "problem", "none is installed"),
    ],
)
def test_packages_are_of_one_triple(monkeypatch, versions, level, words):
    monkeypatch.setattr(doctor, "installed_versions", lambda names: {n: versions[n] for n in names if n in versions})
    expect(doctor.matching_packages(), level, words)


def nvml(**replaced):
    """The driver of one healthy H100; a value stands for the answer of the call of that name."""
    answers = {
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 * 10**9, used=5 * 10**8),
    } | replaced
    return SimpleNamespace(**{name: lambda _, answer=answer: answer for name, answer in answers.items()})


GUESTS = [SimpleNamespace(pid=pid) for pid in (10**8, os.getpid())]
TAKEN = SimpleNamespace(total=8 * 10**10, used=2 * 10**9)


@pytest.mark.parametrize(
    ("check", "replaced", "level", "words"),
    [
        (doctor.gpu_link, {}, "ok", "generation 5, width 16 of 16"),
        (doctor.gpu_link, {"nvmlDeviceGetCurrPcieLinkWidth": 4}, "problem", "rows move at 25%"),
        (doctor.gpu_link, {"nvmlDeviceGetCurrPcieLinkWidth": 0}, "unknown", "may hide the bus"),
        (doctor.gpu_in_use, {}, "ok", "0.5 of 80.0 GB in use"),
        (doctor.gpu_in_use, {"nvmlDeviceGetComputeRunningProcesses": GUESTS}, "problem", "on it: pid 100000000"),
        (doctor.gpu_in_use, {"nvmlDeviceGetMemoryInfo": TAKEN}, "warning", "2.0 of 80.0 GB"),
    ],
)
def test_gpu_is_alone_and_its_link_is_whole(check, replaced, level, words):
    expect(check(nvml(**replaced), "handle"), level, words)


def test_gpu_is_asked_where_there_is_one_and_a_silent_or_virtual_one_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "visible_gpu", lambda: None)
    assert not {"GPU link", "GPU in use"} & examine(seconds=0).keys()
    monkeypatch.setattr(doctor, "visible_gpu", lambda: Gpu(model="NVIDIA H100"))
    monkeypatch.setattr(doctor, "ask_nvml", lambda check: check(nvml(), "handle"))
    assert examine(seconds=0)["GPU link"].level is Level.OK
    monkeypatch.setattr(doctor, "ask_nvml", lambda check: None)
    expect(examine(seconds=0)["GPU in use"], "unknown", "NVML does not answer")
    monkeypatch.setattr(doctor, "visible_gpu", lambda: Gpu(model=VIRTUAL_DEVICE))
    expect(examine(seconds=0)["GPU link"], "unknown", "virtual device: no speed")


def test_calls_are_those_of_the_real_bindings():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py comes with the CUDA requirements")
    assert [name for name in vars(nvml()) if not hasattr(pynvml, name)] == []


def test_check_that_fails_is_unknown_and_findings_come_worst_first(monkeypatch):
    def broken(_):
        raise ValueError("odd")

    monkeypatch.setattr(doctor, "granted_cpus", lambda _: 1.0)
    monkeypatch.setattr(doctor, "installed_versions", broken)
    found = examine(seconds=0)
    expect(found["packages"], "unknown", "the check failed with ValueError: odd")
    expect(found["CPU quota"], "problem", "may use 1.0 CPUs")
    levels = [list(Level).index(finding.level) for finding in found.values()]
    assert levels == sorted(levels)


def test_this_machine_is_examined_without_a_check_that_fails(monkeypatch):
    monkeypatch.undo()
    findings = examine(seconds=0.1)
    assert not [finding for finding in findings.values() if "the check failed" in finding.seen]


WELL = {"load": ok("others take 1%"), "governor": ok("governor performance")}


def call(monkeypatch, findings, *words):
    def examine(*, seconds):
        if findings is None:
            raise KeyboardInterrupt
        return findings

    monkeypatch.setattr(doctor, "examine", examine)
    return CliRunner().invoke(app, ["doctor", *words], env={"COLUMNS": "50"})


def test_blocks_have_a_remedy_and_fit_the_terminal(monkeypatch):
    spoilt = problem("the container may use 1.0 CPUs but sees 4 " * 3, "Give it CPUs instead of a quota.")
    result = call(monkeypatch, {"CPU quota": spoilt, **WELL})
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 50
    assert lines[0] == "problem: CPU quota"
    assert "sees 4 -> Give it CPUs" in " ".join(result.stdout.split())
    assert "ok: load, governor" in result.stdout
    assert lines[-1] == "problem: 1, warning: 0, unknown: 0, ok: 2"


@pytest.mark.parametrize(
    ("finding", "plain", "strict"), [(unknown("no"), 0, 0), (warning("so", "do"), 0, 1), (problem("so", "do"), 1, 1)]
)
def test_exit_code_is_1_for_a_problem_and_with_strict_for_a_warning(monkeypatch, finding, plain, strict):
    assert call(monkeypatch, WELL | {"GPU link": finding}).exit_code == plain
    assert call(monkeypatch, WELL | {"GPU link": finding}, "--strict").exit_code == strict


def test_ctrl_c_ends_with_130(monkeypatch):
    result = call(monkeypatch, None)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "not finished" in result.stderr
