"""What several checks judge, and how it is read."""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from suite.doctor.finding import Unsaid
from suite.run.conditions import MachineMonitor

_DRIVER = Path("/proc/driver/nvidia/version")
"""What the kernel driver shows where it is loaded."""


@dataclass(frozen=True)
class Gpu:
    """A device: the initialised module `pynvml`, what it calls the device, or why the driver cannot be asked."""

    nvml: Any = None
    handle: Any = None
    error: str = ""

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 - each of NVML's calls has its own type
        """Call a function of NVML for this device.

        Raises:
            Unsaid: the driver cannot be asked, refuses, or has no such thing for this kind of device.
        """
        if self.error:
            raise Unsaid(self.error)
        try:
            return getattr(self.nvml, function)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            raise Unsaid(f"{function} says: {error}") from None


def open_gpu() -> Gpu | None:
    """The first device that cells would see; None where there is none, or the environment hides all.

    `CUDA_VISIBLE_DEVICES` is honoured by index (in PCI order) and by UUID.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if visible in ("", "-1"):
        return None
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        missing = "an NVIDIA driver is loaded but nvidia-ml-py is missing: run `make setup BUILD=cuda`"
        return Gpu(error=missing) if _DRIVER.exists() else None
    try:
        nvml.nvmlInit()
        by_index = visible.isdigit()
        find = nvml.nvmlDeviceGetHandleByIndex if by_index else nvml.nvmlDeviceGetHandleByUUID
        return Gpu(nvml, find(int(visible) if by_index else visible))
    except nvml.NVMLError as error:
        refused = f"the NVIDIA driver does not give device {visible} of CUDA_VISIBLE_DEVICES: {error}"
        return Gpu(error=refused) if _DRIVER.exists() else None


MODULES = ("numba", "torch", "fbgemm_gpu", "tensordict", "torchmetrics", "torchrec", "polars")
"""What is imported by others comes before them, so that its error is told under its own name."""
_IMPORT_ALL = """
import importlib, sys
out, sys.stdout = sys.stdout, sys.stderr
for name in sys.argv[1:]:
    print(name, file=out, flush=True)
    importlib.import_module(name)
import torch
print(torch.version.cuda or "", int(torch.cuda.is_available()), sep="/", file=out)
"""
_IMPORTS_TIMEOUT_S = 60.0
_TOP = 3


@dataclass(frozen=True)
class Sample:
    """Who computed while this process waited: shares of the watched CPUs, and in words who took most."""

    taken: float
    stolen: float
    top: tuple[str, ...] = ()


@dataclass(frozen=True)
class Imports:
    """What became of importing the packages: which failed and why, torch's CUDA (empty: none), whether it has a GPU."""

    error: str = ""
    cuda: str = ""
    sees_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What several checks judge; what concerns one alone it reads itself.

    Attributes:
        root: Where `/proc` and `/sys` are found.
        cpus: Logical CPUs that this process may use.
        gpu: The device that would be measured. None: there is none, or the environment hides it.
    """

    root: Path
    cpus: Set[int]
    sample: Sample
    imports: Imports
    gpu: Gpu | None

    def text(self, path: str) -> str:
        """Contents of a file below the root, stripped.

        Raises:
            Unsaid: it cannot be read.
        """
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError as error:
            raise Unsaid(f"/{path} cannot be read ({error.strerror or error})") from None


def this_machine(*, seconds: float) -> Machine:
    """Read the machine that this runs on; others' use of it is watched for so many seconds."""
    return Machine(
        root=Path("/"),
        cpus=os.sched_getaffinity(0),
        sample=watch(seconds),  # before the imports, which compute
        imports=import_all(),
        gpu=open_gpu(),
    )


def watch(seconds: float) -> Sample:
    """Wait for so many seconds, and see who computes meanwhile, as a run does while systems take turns.

    Short processes and those of other containers count, too. They have no name here.
    """
    processes = list(psutil.process_iter(["name"]))
    for process in processes:
        _share(process)  # the first call only starts the count
    watched = MachineMonitor(cuda=False)
    time.sleep(seconds)
    seen = watched.conditions(complete=True)
    shares = sorted(((_share(process), process.pid, process.info["name"]) for process in processes), reverse=True)
    top = tuple(f"{name} (pid {pid}, {share:.0%} of one CPU)" for share, pid, name in shares[:_TOP] if share > 0)
    return Sample(taken=seen.others_cpu_share or 0.0, stolen=seen.stolen_cpu_share or 0.0, top=top)


def import_all(modules: Sequence[str] = MODULES, *, timeout_s: float = _IMPORTS_TIMEOUT_S) -> Imports:
    """Import modules one after the other, in another process because a broken shared library may kill it."""
    command = [sys.executable, "-c", _IMPORT_ALL, *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Imports(error=f"the imports take more than {timeout_s:g} s")
    last = (done.stdout.splitlines() or [modules[0]])[-1]
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"it ended the process with code {done.returncode}"])[-1]
        return Imports(error=f"import {last}: {reason}")
    cuda, _, sees_gpu = last.partition("/")
    return Imports(cuda=cuda, sees_gpu=sees_gpu == "1")


def _share(process: psutil.Process) -> float:
    try:
        return float(process.cpu_percent()) / 100
    except psutil.Error:  # it ended, or is closed to us
        return 0.0
