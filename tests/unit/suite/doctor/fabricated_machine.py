"""A healthy machine of four cores, made of files and answers; tests spoil one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from suite.doctor import probes
from suite.doctor.finding import Unsaid
from suite.doctor.gpu_probe import Gpu
from suite.doctor.imports import MODULES, Imported
from suite.doctor.machine import Machine
from suite.doctor.sample import Sample

QUIET = Sample(wall_s=2.0, cpus=4, others_s=0.02, stolen_s=0.0, top=())
VERSIONS = {
    "torch": "2.13.0+cpu",
    "torchrec": "1.8.0",
    "fbgemm-gpu-cpu": "1.8.0",
    "torchmetrics": "1.0.3",
    "numpy": "2.4.6",
    "tensordict": "0.15.3",
}
MEMINFO = """MemTotal:       32000000 kB
SwapTotal:             0 kB
SwapFree:              0 kB
CommitLimit:    20000000 kB
Committed_AS:    5000000 kB
HugePages_Total:       0
"""
FILES = {
    "proc/cpuinfo": "processor : 0\nmodel name : Some CPU\nflags : fpu sse avx2\n",
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/cpu/online": "0-3\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
    "sys/devices/system/node/online": "0\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(4)},
    **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq": "2900000\n" for cpu in range(4)},
    **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": "3000000\n" for cpu in range(4)},
    **{f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu}\n" for cpu in range(4)},
}


def healthy(folder):
    """A machine below `folder` of which nothing is to be said."""
    for path, text in FILES.items():
        write(folder, path, text)
    requirements = folder / "project" / "requirements"
    requirements.mkdir(parents=True)
    (requirements / "base.txt").write_text("# needed\nnumpy==2.4.6\ntorch==2.13.0  # any build\n")
    (requirements / "no-deps.txt").write_text("tensordict==0.15.3\ntorchmetrics==1.0.3\ntorchrec==1.8.0\n")
    (requirements / "cpu.txt").write_text("fbgemm-gpu-cpu==1.8.0\n")
    (requirements / "cuda.txt").write_text("fbgemm-gpu==1.8.0\nnvidia-ml-py==13.615.71  # asks the driver\n")
    imported = {name: Imported() for name in MODULES}
    imported["torch"] = Imported(threads=4, built_for="", sees_gpu=False)
    return Machine(
        root=folder,
        project=folder / "project",
        results=folder / "results",
        temporary=folder,
        environment={},
        affinity=lambda: frozenset(range(4)),
        load_average=lambda: 0.4,
        available_bytes=lambda: 400 * 10**9,
        disk=lambda path: probes.Disk(10**12, 10**12 if path.name == "shm" else 5 * 10**11),
        writable=lambda path: True,
        limits=lambda: probes.Limits(address_space_bytes=None, locked_bytes=None),
        version=VERSIONS.get,
        interpreter=probes.Interpreter,
        sample=lambda: QUIET,
        imports=lambda: imported,
        gpu=lambda: None,
    )


def write(folder, path, text):
    """A file below `folder`."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


class NvmlError(Exception):
    """As nvidia-ml-py's: `value` is the number of the error, 3 meaning not supported."""

    def __init__(self, value, text):
        super().__init__(text)
        self.value = value


def not_supported(*_):
    raise NvmlError(3, "Not Supported")


def no_permission(*_):
    raise NvmlError(4, "Insufficient Permissions")


def nvml(**replaced):
    """NVML of one healthy H100 at work; a value stands for the answer of the call of that name."""
    answers = {
        "nvmlDeviceGetName": "NVIDIA H100",
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:3B:00.0"),
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 * 10**9, used=5 * 10**8),
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetApplicationsClock": 1980,
        "nvmlDeviceGetDefaultApplicationsClock": 1980,
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlInit": None,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetHandleByUUID": "handle",
    } | replaced
    calls = {
        name: answer if callable(answer) else lambda *_, answer=answer: answer
        for name, answer in answers.items()
        if answer is not absent
    }
    return SimpleNamespace(NVMLError=NvmlError, **calls)


absent = object()
"""In place of an answer: this nvidia-ml-py has no such call."""


def with_gpu(machine, **replaced):
    """The machine with a device, and a torch that sees it."""
    write(machine.root, "sys/bus/pci/devices/0000:3b:00.0/numa_node", "0\n")
    imported = dict(machine.imports()) | {"torch": Imported(threads=4, built_for="12.8", sees_gpu=True)}
    gpu = Gpu(nvml(**replaced), "handle")
    return replace(machine, gpu=lambda: gpu, imports=lambda: imported)


def says_nothing(folder):
    """A machine without any file and with every probe failing."""

    def fails(*_):
        raise Unsaid("nobody knows")

    def breaks(*_):
        raise PermissionError(13, "Permission denied")

    return Machine(
        root=folder / "absent",
        project=folder / "absent",
        results=folder / "results",
        temporary=folder,
        environment={},
        affinity=fails,
        load_average=fails,
        available_bytes=breaks,
        disk=fails,
        writable=breaks,
        limits=fails,
        version=breaks,
        interpreter=breaks,
        sample=fails,
        imports=fails,
        gpu=fails,
    )
