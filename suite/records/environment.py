"""Machine, packages and code that a cell runs on, captured without importing torch."""

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from suite.records.measured import Model

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

PROJECT = Path(__file__).resolve().parents[2]
"""Folder of the packages below, as this process imported them."""
SOURCE_PACKAGES = ("suite", "systems", "workloads")
_PRESENTING = (
    "suite/advise", "suite/compare", "suite/doctor.py", "suite/report", "suite/run/console", "suite/tables",
    "suite/validate.py",
)  # fmt: skip
"""Code that shows records, inspects a machine or reads options. What it decides is in the cell itself."""

DISTRIBUTIONS = (
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
    "numba",
    "numpy",
    "pandas",
    "polars",
    "tensordict",
    "torch",
    "torchmetrics",
    "torchrec",
)

VIRTUAL_DEVICE = "Virtual CUDA device in host memory"
"""Model name of the tests' virtual GPU, which is host memory behind a runtime of their own. Its times mean nothing."""
NO_SPEED = "virtual device: no speed"
"""Printed where a speed of a measured device would stand."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Environment(Model):
    """Machine, packages and code of a cell. `machine` digests what is stable; the rest is for the reader."""

    machine: str
    """Digest of CPU model, core count, memory in whole GiB and GPU model: equal on equal machines, from day to day."""
    cpu: str
    cores: int
    memory_bytes: int
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    os: str
    python: str
    packages: dict[str, str]
    """Versions of torch, torchrec, fbgemm-gpu(-cpu), numpy, ..., by distribution name."""
    code: str
    """Digest of the source files of suite, systems and workloads, less those that only show records."""
    system_code: str | None = None
    """Digest of the source files of a system given as `module:Class`. None: one of the suite's, or it was not found."""
    commit: str | None = None
    dirty: bool | None = None
    threads: int
    openmp: dict[str, str] = {}
    """Environment variables that decide how OpenMP's threads wait, as workers have them."""


WORKERS_OPENMP = {"GOMP_SPINCOUNT": "2000"}
"""Variables of workers unless the environment sets them: OpenMP's threads sleep soon where others compute."""
OPENMP = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND")


class Gpu(NamedTuple):
    """The first visible GPU, as far as it is described."""

    model: str
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    """Highest CUDA version that the driver serves, e.g. `12.8`; torch's own is part of its package version."""
    uuid: str | None = None


def capture(*, threads: int | None = None) -> Environment:
    """Describe this machine, the installed packages and the code.

    Args:
        threads: `torch.get_num_threads()` of the process that computes; by default one per CPU.
    """
    cpu, cores, memory_bytes, gpu = cpu_model(), len(os.sched_getaffinity(0)), usable_memory_bytes(), visible_gpu()
    machine = f"{cpu}\n{cores}\n{round(memory_bytes / 2**30)}\n{gpu.model if gpu else ''}"
    commit, dirty = git_state(PROJECT)
    return Environment(
        machine=hashlib.sha256(machine.encode()).hexdigest()[:12],
        cpu=cpu,
        cores=cores,
        memory_bytes=memory_bytes,
        gpu=gpu.model if gpu else None,
        gpu_memory_bytes=gpu.memory_bytes if gpu else None,
        driver=gpu.driver if gpu else None,
        cuda=gpu.cuda if gpu else None,
        os=platform.platform(),
        python=platform.python_version(),
        packages=installed_versions(DISTRIBUTIONS),
        code=code_digest(PROJECT),
        commit=commit,
        dirty=dirty,
        threads=cores if threads is None else threads,
        openmp={name: value for name, value in {**WORKERS_OPENMP, **os.environ}.items() if name in OPENMP},
    )


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of those distributions that are installed, by name."""
    versions = {}
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def cpu_model() -> str:
    """Model name of the CPU; its architecture where the kernel tells no name (many ARM machines)."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def usable_memory_bytes() -> int:
    """Memory of the machine, or of the container if it grants less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        # An unlimited group says `max` (version 2) or a number beyond any memory (version 1).
        with suppress(OSError, ValueError):
            total = min(total, int(path.read_text()))
    return total


def visible_gpu() -> Gpu | None:
    """The GPU that cells number 0, as NVML describes it, or None."""
    return ask_nvml(_described)


def device_name(device: str) -> str:
    """A name for the device that computes, unique on the machine: `cpu`, or `cuda-` and the GPU's UUID."""
    gpu = visible_gpu() if device == "cuda" else None
    return f"{device}-{gpu.uuid}" if gpu is not None and gpu.uuid else device


def ask_nvml(question: Callable[[Any, Any], Answer]) -> Answer | None:
    """Ask NVML about the GPU that cells number 0: the first of `CUDA_VISIBLE_DEVICES`, by index or by UUID.

    `question` is called with the module `pynvml` and its handle of the GPU. None where there is no NVML or no such GPU,
    or where it refuses.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first in ("", "-1"):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.debug("no GPU through NVML: %s", error)
        return None
    try:
        find = pynvml.nvmlDeviceGetHandleByIndex if first.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
        return question(pynvml, find(int(first) if first.isdigit() else first))
    except pynvml.NVMLError as error:
        log.warning("the GPU %r of CUDA_VISIBLE_DEVICES is not described: %s", first, error)
        return None
    finally:
        pynvml.nvmlShutdown()


def _described(nvml: Any, gpu: Any) -> Gpu:  # noqa: ANN401 - a module and an opaque handle
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    return Gpu(
        model=str(nvml.nvmlDeviceGetName(gpu)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(gpu).total),
        driver=str(nvml.nvmlSystemGetDriverVersion()),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        uuid=str(nvml.nvmlDeviceGetUUID(gpu)),
    )


def git_state(project: Path) -> tuple[str | None, bool | None]:
    """Commit of the project, and whether its source packages differ from it (new files counted).

    Both are None outside git, where git is missing, and where the project merely lies inside another repository
    (installed into a virtual environment, say).
    """
    top = _git(project, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != project.resolve():
        return None, None
    changes = _git(project, "--no-optional-locks", "status", "--porcelain", "--", *SOURCE_PACKAGES)
    return _git(project, "rev-parse", "--verify", "HEAD"), None if changes is None else bool(changes)


def _git(project: Path, *arguments: str) -> str | None:
    # Inside a git hook GIT_DIR and its like point at whatever repository runs the hook.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(project), *arguments]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.check_output(command, env=environment, stderr=subprocess.DEVNULL, text=True, timeout=20)
        return said.strip()
    return None


def code_digest(project: Path) -> str:
    """Digest of the `.py` and `.json` files of the source packages that can change a measurement.

    Folders that only present records are left out: a new table does not make a measured cell undone.
    """
    files = [
        path
        for package in SOURCE_PACKAGES
        for path in _sources(project / package, (".py", ".json"))
        if not any(path.is_relative_to(project / folder) for folder in _PRESENTING)
    ]
    return _digest(files, project)


def system_digest(system: str) -> str | None:
    """Digest of the code of a system of one's own.

    That is the file of its module. Where the module is a package, or lies in one, it is every `.py` file of that
    package, because the module's neighbours are what it is most likely to import. None for a registered system, whose
    code `code_digest` covers, and for a module that cannot be found.
    """
    module, colon, _ = system.partition("[")[0].partition(":")
    try:
        spec = importlib.util.find_spec(module) if colon else None
    except Exception:  # a package of one's own runs as it is searched, and can raise anything
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin)
    # a folder without an __init__.py is no package: what lies in it need not belong together
    in_package = (file.parent / "__init__.py").is_file()
    return _digest(_sources(file.parent, (".py",)) if in_package else [file], file.parent)


def _sources(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file()]


def _digest(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        content = path.read_bytes()
        # The length keeps a file's end from being mistaken for the next one's beginning.
        digest.update(f"{path.relative_to(root).as_posix()}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
