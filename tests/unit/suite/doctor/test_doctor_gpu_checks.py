"""What the checks of the GPU say, by a driver of our own making."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fabricated_machine import NvmlError, absent, healthy, no_permission, not_supported, nvml, with_gpu

from suite.doctor import gpu, gpu_probe
from suite.doctor.examine import GPU_CHECKS, examine
from suite.doctor.finding import Answer, Level, Unsaid
from suite.doctor.gpu_probe import Gpu, open_gpu
from suite.doctor.imports import Imported
from suite.doctor.numa import pci_address

IDLE = 0x1


@pytest.fixture
def machine(tmp_path):
    return healthy(tmp_path)


def test_healthy_device_is_well_in_every_respect(machine):
    machine = with_gpu(machine)
    answers = {name: check(machine) for name, check in GPU_CHECKS.items()}
    assert {name: answer.level for name, answer in answers.items()} == dict.fromkeys(GPU_CHECKS, Level.OK)
    assert gpu.device(machine) == Answer(Level.OK, "NVIDIA H100")


def test_machine_without_a_device_gives_cpu_figures_only(machine):
    assert "CPU figures only" in gpu.device(machine).remedy
    names = {finding.name for finding in examine(machine)}
    assert "GPU" in names
    assert not names & set(GPU_CHECKS)


@pytest.mark.parametrize("check", GPU_CHECKS.values(), ids=GPU_CHECKS)
def test_without_a_device_there_is_nothing_to_say_of_it(machine, check):
    with pytest.raises(Unsaid, match="no NVIDIA device"):
        check(machine)


def test_device_that_the_environment_hides_is_told_apart_from_none(machine):
    answer = gpu.device(replace(machine, environment={"CUDA_VISIBLE_DEVICES": "-1"}))
    assert answer.level is Level.OK
    assert "CUDA_VISIBLE_DEVICES" in answer.seen


@pytest.mark.parametrize(("built_for", "said"), [("", "CPU build"), ("13.0", "does not see")])
def test_device_that_torch_does_not_see_is_a_problem(machine, built_for, said):
    machine = with_gpu(machine)
    torch = Imported(threads=4, built_for=built_for, sees_gpu=False)
    answer = gpu.device(replace(machine, imports=lambda: {"torch": torch}))
    assert answer.level is Level.PROBLEM
    assert said in answer.seen
    assert ("CPU build" in answer.seen) == (built_for == "")


# the link


def test_link_narrower_than_it_could_be_is_a_problem(machine):
    answer = gpu.pcie_link(with_gpu(machine, nvmlDeviceGetCurrPcieLinkWidth=4))
    assert answer.level is Level.PROBLEM
    assert "width 4 of 16: rows move at 25% of the speed" in answer.seen


def test_slower_generation_is_a_note_on_an_idle_device_and_a_warning_on_one_at_work(machine):
    slow = {"nvmlDeviceGetCurrPcieLinkGeneration": 1}
    idle = gpu.pcie_link(with_gpu(machine, nvmlDeviceGetCurrentClocksEventReasons=IDLE, **slow))
    assert idle.level is Level.OK
    assert "idle link" in idle.seen
    assert "nvidia-smi" in idle.remedy
    assert gpu.pcie_link(with_gpu(machine, **slow)).level is Level.WARNING


def test_slot_older_than_the_gpu_is_a_warning(machine):
    four = {"nvmlDeviceGetCurrPcieLinkGeneration": 4, "nvmlDeviceGetMaxPcieLinkGeneration": 4}
    answer = gpu.pcie_link(with_gpu(machine, **four))
    assert answer.level is Level.WARNING
    assert "could use generation 5" in answer.seen
    assert gpu.pcie_link(with_gpu(machine, nvmlDeviceGetGpuMaxPcieLinkGeneration=absent, **four)).level is Level.OK


@pytest.mark.parametrize(("answer", "said"), [(0, "no link"), (no_permission, "Insufficient Permissions")])
def test_link_that_the_driver_does_not_show_is_unknown(machine, answer, said):
    with pytest.raises(Unsaid, match=said):
        gpu.pcie_link(with_gpu(machine, nvmlDeviceGetCurrPcieLinkWidth=answer))


# who uses it


def processes(*pids):
    return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]


def test_others_that_compute_on_it_are_a_problem_and_a_screen_is_a_warning(machine):
    computing = gpu.gpu_processes(with_gpu(machine, nvmlDeviceGetComputeRunningProcesses=processes(10**7, 10**7 + 1)))
    assert computing.level is Level.PROBLEM
    assert "pid 10000000, 10000001" in computing.seen
    drawing = gpu.gpu_processes(with_gpu(machine, nvmlDeviceGetGraphicsRunningProcesses=processes(10**7)))
    assert drawing.level is Level.WARNING
    none = gpu.gpu_processes(with_gpu(machine, nvmlDeviceGetGraphicsRunningProcesses=not_supported))
    assert none.level is Level.OK


def test_we_ourselves_are_not_among_the_others(machine, monkeypatch):
    monkeypatch.setattr(gpu.os, "getpid", lambda: 77)
    machine = with_gpu(machine, nvmlDeviceGetComputeRunningProcesses=processes(77))
    assert gpu.gpu_processes(machine).level is Level.OK


@pytest.mark.parametrize(("used", "level"), [(10**9, "ok"), (15 * 10**8, "ok"), (20 * 10**8, "warning")])
def test_memory_in_use_beyond_the_drivers_own_is_a_warning(machine, used, level):
    state = SimpleNamespace(total=80 * 10**9, used=used)  # 2 % are 1.6 GB
    assert gpu.gpu_memory(with_gpu(machine, nvmlDeviceGetMemoryInfo=state)).level == level


# its state


@pytest.mark.parametrize(
    ("mode", "errors", "level", "seen"),
    [
        ([1, 1], 0, "ok", "on"),
        ([0, 0], not_supported, "ok", "off"),
        ([1, 0], 0, "warning", "off after the next restart"),
        ([0, 1], 0, "warning", "on after the next restart"),
        ([1, 1], 3, "problem", "3 uncorrected errors"),
        (not_supported, 0, "ok", "has none"),
    ],
)
def test_error_correction(machine, mode, errors, level, seen):
    answer = gpu.ecc(with_gpu(machine, nvmlDeviceGetEccMode=mode, nvmlDeviceGetTotalEccErrors=errors))
    assert answer.level == level
    assert seen in answer.seen


@pytest.mark.parametrize(("mode", "level"), [(1, "ok"), (0, "warning"), (not_supported, "ok")])
def test_driver_that_lets_go_between_cells_is_a_warning(machine, mode, level):
    assert gpu.persistence_mode(with_gpu(machine, nvmlDeviceGetPersistenceMode=mode)).level == level


@pytest.mark.parametrize(
    ("reasons", "level", "seen"),
    [
        (0, "ok", "1200 of 1980 MHz"),
        (IDLE, "ok", "idle"),
        (0x2, "ok", "fixed by a setting"),
        (0x4, "warning", "power limit"),
        (0x20 | 0x40 | IDLE, "warning", "heat, by the driver, heat, by the hardware"),
        (0x80, "warning", "power brake"),
    ],
)
def test_what_holds_the_clock_back_is_named(machine, reasons, level, seen):
    answer = gpu.gpu_clocks(
        with_gpu(machine, nvmlDeviceGetClockInfo=1200, nvmlDeviceGetCurrentClocksEventReasons=reasons)
    )
    assert answer.level == level
    assert seen in answer.seen


def test_older_bindings_and_drivers_are_asked_by_the_older_name(machine):
    def unknown_to_the_driver(*_):
        raise NvmlError(13, "Function Not Found")

    for newer in (absent, unknown_to_the_driver):
        calls = {"nvmlDeviceGetCurrentClocksEventReasons": newer, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x8}
        assert gpu.gpu_clocks(with_gpu(machine, **calls)).level is Level.WARNING
    with pytest.raises(Unsaid, match="EventReasons"):
        gpu.gpu_clocks(with_gpu(machine, nvmlDeviceGetCurrentClocksEventReasons=absent))


@pytest.mark.parametrize(("chosen", "level"), [(1980, "ok"), (1200, "warning"), (not_supported, "ok")])
def test_application_clocks_below_the_default_are_a_warning(machine, chosen, level):
    assert gpu.application_clocks(with_gpu(machine, nvmlDeviceGetApplicationsClock=chosen)).level == level


@pytest.mark.parametrize(
    ("mode", "level"), [([0, 0], "ok"), ([1, 1], "warning"), ([0, 1], "warning"), (not_supported, "ok")]
)
def test_divided_device_is_a_warning(machine, mode, level):
    assert gpu.mig(with_gpu(machine, nvmlDeviceGetMigMode=mode)).level == level


# finding it


@pytest.fixture
def driver(tmp_path):
    (tmp_path / "version").write_text("NVRM version: 570.0")
    return tmp_path / "version"


def chosen_by(visible, driver):
    calls = {"nvmlDeviceGetHandleByIndex": lambda index: index, "nvmlDeviceGetHandleByUUID": lambda uuid: uuid}
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return open_gpu(environment, nvml=nvml(**calls), driver=driver)


@pytest.mark.parametrize(("visible", "handle"), [(None, 0), ("2,0", 2), ("GPU-1a,GPU-2b", "GPU-1a")])
def test_first_visible_device_is_the_one(driver, visible, handle):
    assert chosen_by(visible, driver).handle == handle


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_devices_are_none(driver, visible):
    assert chosen_by(visible, driver) is None


def test_driver_that_does_not_answer_is_unknown_and_no_driver_is_no_device(driver, tmp_path):
    def fails():
        raise NvmlError(9, "Driver Not Loaded")

    assert open_gpu({}, nvml=nvml(nvmlInit=fails), driver=tmp_path / "absent") is None
    with pytest.raises(Unsaid, match="does not answer: Driver Not Loaded"):
        open_gpu({}, nvml=nvml(nvmlInit=fails), driver=driver)


def test_device_that_is_not_there_is_named(driver):
    def fails(index):
        raise NvmlError(2, "Invalid Argument")

    calls = nvml(nvmlDeviceGetHandleByIndex=fails)
    with pytest.raises(Unsaid, match="CUDA_VISIBLE_DEVICES=5 names no device"):
        open_gpu({"CUDA_VISIBLE_DEVICES": "5"}, nvml=calls, driver=driver)
    assert open_gpu({}, nvml=calls, driver=driver) is None


def test_driver_without_its_python_bindings_says_what_to_install(driver, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu({}, driver=tmp_path / "absent") is None
    with pytest.raises(Unsaid, match="nvidia-ml-py is not installed: run `make setup"):
        open_gpu({}, driver=driver)


def test_calls_are_those_of_the_real_bindings():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py comes with the CUDA requirements")
    assert [name for name in vars(nvml()) if not hasattr(pynvml, name)] == []
    assert pynvml.NVMLError(gpu_probe._NOT_SUPPORTED).value == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert (gpu._SM_CLOCK, gpu._ON) == (pynvml.NVML_CLOCK_SM, pynvml.NVML_FEATURE_ENABLED)
    assert (gpu._UNCORRECTED, gpu._SINCE_BOOT) == (
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    assert pynvml.nvmlClocksEventReasonGpuIdle == gpu._IDLE
    assert pynvml.nvmlClocksEventReasonApplicationsClocksSetting == gpu._SETTING
    assert set(gpu._HELD_BACK) == {
        pynvml.nvmlClocksEventReasonSwPowerCap,
        pynvml.nvmlClocksEventReasonHwSlowdown,
        pynvml.nvmlClocksEventReasonSwThermalSlowdown,
        pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    }


def test_call_that_the_bindings_lack_is_unknown():
    with pytest.raises(Unsaid, match="has no nvmlDeviceGetMigMode"):
        Gpu(nvml(nvmlDeviceGetMigMode=absent), "handle").ask("nvmlDeviceGetMigMode")


def test_address_of_a_device_is_written_as_sysfs_does():
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("0000000A:C1:00.1") == "000a:c1:00.1"
