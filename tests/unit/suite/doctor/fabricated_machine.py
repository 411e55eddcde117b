"""A healthy machine of four cores, made of files and facts; tests spoil one thing at a time."""

from pathlib import Path
from types import SimpleNamespace

from suite.doctor.machine import Disk, Gpu, Hold, Imports, Machine, Sample

VERSIONS = {"torch": "2.13.0+cpu", "torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.8.0"}
CPU = "sys/devices/system/cpu"
FILES = {
    "proc/self/cgroup": "0::/a.slice/b.scope\n",
    "sys/fs/cgroup/a.slice/cpu.max": "max 100000\n",
    f"{CPU}/intel_pstate/no_turbo": "1\n",
    "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n",
    **{f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu}\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/node0/cpu{cpu}": "" for cpu in range(4)},
}


def healthy(folder):
    """A machine below `folder` of which nothing is to be said."""
    for path, text in FILES.items():
        write(folder, path, text)
    return Machine(
        root=folder,
        environment={"CUDA_LAUNCH_BLOCKING": "0"},
        cpus=set(range(4)),
        all_cpus=4,
        sample=Sample(taken=0.01, stolen=0.0),
        available_bytes=400 * 10**9,
        swapped_bytes=0,
        hold=Hold(how="memory control group, version 2"),
        results=Disk(Path("results"), 10**12, "ext4", writable=True),
        temporary=Disk(Path("/tmp"), 10**12, "ext4", writable=True),
        versions=VERSIONS,
        imports=Imports(),
        gpu=None,
    )


def write(folder, path, text):
    """A file below `folder`."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


class NvmlError(Exception):
    """What NVML's calls raise."""


def refused(*_):
    raise NvmlError("Not Supported")


def nvml(**replaced):
    """The driver of one healthy H100; a value stands for the answer of the call of that name."""
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetName": "NVIDIA H100",
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:3B:00.0"),
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 * 10**9, used=5 * 10**8),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetMaxClockInfo": 1980,
    } | replaced
    calls = {name: answer if callable(answer) else lambda *_, answer=answer: answer for name, answer in answers.items()}
    return SimpleNamespace(NVMLError=NvmlError, **calls)


def gpu(**replaced):
    """The H100, with other answers of its driver."""
    return Gpu(nvml(**replaced), "handle")
