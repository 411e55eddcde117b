"""Where a cell runs: machine, packages and code, captured without importing torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.records.record import Environment

log = logging.getLogger(__name__)

SOURCE_PACKAGES = ("suite", "systems", "workloads")
_PRESENTING = (
    "__main__", "cli", "console", "forecast", "forecaster", "frames", "groups", "published", "quantities",
    "look", "render", "rows", "sections", "statistics", "tables", "upgrades",
)  # fmt: skip
"""Modules that show records, predict, or read options; what they decide is in the cell itself."""
_BESIDE = ("advise", "compare", "doctor", "report", "schema", "simulate", "validate")
"""Folders of `suite` that predict, publish, inspect or describe; they measure no cell."""
DISTRIBUTIONS = (
    "datasketches",
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

_PROJECT = Path(__file__).resolve().parents[2]
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_NVIDIA_PROC = Path("/proc/driver/nvidia")
_GIT_TIMEOUT_S = 20


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The first visible GPU.

    Attributes:
        model: As the driver names it.
        memory_bytes: All of its memory. None: the driver cannot be asked.
        driver: Version of the kernel driver.
        cuda: Highest CUDA version that the driver serves, e.g. `12.8`; torch's own is part of its package version.
    """

    model: str
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None


def capture(*, threads: int, project: Path = _PROJECT) -> Environment:
    """Describe this machine, the installed packages and the code.

    Args:
        threads: What `torch.get_num_threads()` says in the process that computes; torch is not imported for it here.
        project: Directory that holds the packages `suite`, `systems` and `workloads`.

    Returns:
        The environment. Whatever cannot be found out (no GPU, no git) is None, never an error.
    """
    cpu, cores, memory_bytes, gpu = cpu_model(), len(os.sched_getaffinity(0)), usable_memory_bytes(), visible_gpu()
    commit, dirty = git_state(project)
    return Environment(
        machine=machine_digest(cpu=cpu, cores=cores, memory_bytes=memory_bytes, gpu=gpu.model if gpu else None),
        cpu=cpu,
        cores=cores,
        memory_bytes=memory_bytes,
        gpu=gpu.model if gpu else None,
        gpu_memory_bytes=gpu.memory_bytes if gpu else None,
        driver=gpu.driver if gpu else None,
        cuda=gpu.cuda if gpu else None,
        os=_operating_system(),
        python=platform.python_version(),
        packages=installed_versions(DISTRIBUTIONS),
        code=code_digest(project),
        commit=commit,
        dirty=dirty,
        threads=threads,
    )


def machine_digest(*, cpu: str, cores: int, memory_bytes: int, gpu: str | None) -> str:
    """Digest of what stays the same on a machine from one day to the next; memory counts in whole GiB."""
    blob = f"{cpu}\n{cores}\n{round(memory_bytes / 2**30)}\n{gpu or ''}"
    return hashlib.sha256(blob.encode()).hexdigest()[:12]


def code_digest(project: Path) -> str:
    """Digest of the `.py` and `.json` files of the source packages that can change a measurement.

    Their relative paths and contents, sorted. What only presents records is left out: a new table does not make a
    measured cell undone.
    """
    digest = hashlib.sha256()
    files = [
        path
        for package in SOURCE_PACKAGES
        for path in (project / package).rglob("*")
        if path.suffix in (".py", ".json")
        and path.is_file()
        and path.stem not in _PRESENTING
        and not path.relative_to(project).as_posix().startswith(tuple(f"suite/{folder}/" for folder in _BESIDE))
    ]
    for path in sorted(files, key=lambda path: path.relative_to(project).as_posix()):
        content = path.read_bytes()
        # The length keeps a file's end from being mistaken for the next one's beginning.
        digest.update(f"{path.relative_to(project).as_posix()}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of those distributions that are installed, by name."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the CPU; its architecture where the kernel tells no name (many ARM machines)."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    fields = dict(line.split(":", 1) for line in reversed(text.splitlines()) if ":" in line)
    names = {key.strip(): " ".join(value.split()) for key, value in fields.items()}
    return names.get("model name") or platform.processor() or platform.machine()


def usable_memory_bytes() -> int:
    """Memory of the machine, or of the container if it grants less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            # An unlimited group says `max` (version 2) or a number beyond any memory (version 1).
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return total


def visible_gpu() -> Gpu | None:
    """The GPU that CUDA would number 0, or None.

    Asks NVML where `nvidia-ml-py` is installed, else reads what the driver publishes under `/proc`, which names the
    model and the driver only. `CUDA_VISIBLE_DEVICES` is honoured by index (in PCI order) and by UUID.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return None
    first = (visible or "0").split(",")[0].strip()
    return _gpu_from_nvml(first) or _gpu_from_proc(first)


def _gpu_from_nvml(first: str) -> Gpu | None:
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
        handle: Any = (
            pynvml.nvmlDeviceGetHandleByIndex(int(first))
            if first.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(first)
        )
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
        return Gpu(
            model=str(pynvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        )
    except pynvml.NVMLError as error:
        log.warning("the GPU %r of CUDA_VISIBLE_DEVICES is not described: %s", first, error)
        return None
    finally:
        pynvml.nvmlShutdown()


def _gpu_from_proc(first: str, proc: Path = _NVIDIA_PROC) -> Gpu | None:
    try:
        sheets = [sheet.read_text() for sheet in sorted(proc.glob("gpus/*/information"))]
        version = (proc / "version").read_text()
    except OSError:
        return None
    described = [dict(line.split(":", 1) for line in sheet.splitlines() if ":" in line) for sheet in sheets]
    gpus = [{key.strip(): value.strip() for key, value in fields.items()} for fields in described]
    chosen = gpus[int(first) :] if first.isdigit() else [gpu for gpu in gpus if gpu.get("GPU UUID") == first]
    if not chosen or "Model" not in chosen[0]:
        return None
    words = [word for word in version.split() if word[0].isdigit() and "." in word]
    return Gpu(model=chosen[0]["Model"], driver=words[0] if words else None)


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
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _operating_system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, kernel {platform.release()}"
