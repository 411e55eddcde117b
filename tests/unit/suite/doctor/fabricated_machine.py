"""A healthy machine of four cores, made of files and facts; tests spoil one thing at a time."""

from types import SimpleNamespace

from suite.doctor import gpu as gpu_checks
from suite.doctor import software, storage
from suite.doctor.machine import Gpu, Imports, Machine, Sample

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


class Facts(SimpleNamespace):
    """What checks read for themselves, of a healthy machine."""

    cpu_count = 4
    available_host_bytes = 400 * 10**9
    swapped_bytes = 0
    file_system = "ext4"
    free_bytes = 10**12
    writable = True
    versions = VERSIONS
    programs = ("gcc",)
    headers = "include"


def healthy(folder, monkeypatch):
    """A machine below `folder` of which nothing is to be said, and the facts that its checks read."""
    facts = Facts()
    for path, text in FILES.items():
        write(folder, path, text)
    for variable in ("CUDA_LAUNCH_BLOCKING", "NUMBA_DISABLE_JIT", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        monkeypatch.setenv(variable, "0")
    monkeypatch.setattr("psutil.cpu_count", lambda: facts.cpu_count)
    monkeypatch.setattr("psutil.swap_memory", lambda: SimpleNamespace(used=facts.swapped_bytes))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in facts.programs else None)
    write(folder, "include/Python.h", "")
    monkeypatch.setattr(gpu_checks, "sysconfig", SimpleNamespace(get_path=lambda *_: folder / facts.headers))
    monkeypatch.setattr(storage, "available_host_bytes", lambda: facts.available_host_bytes)
    monkeypatch.setattr(storage, "file_system", lambda path: facts.file_system)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=facts.free_bytes))
    monkeypatch.setattr("os.access", lambda path, mode: facts.writable)
    monkeypatch.setattr(storage, "_HOLD", "print('can be made')")
    monkeypatch.setattr(
        software, "installed_versions", lambda names: {n: facts.versions[n] for n in names if n in facts.versions}
    )
    machine = Machine(
        root=folder, cpus=set(range(4)), sample=Sample(taken=0.01, stolen=0.0), imports=Imports(), gpu=None
    )
    return machine, facts


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
