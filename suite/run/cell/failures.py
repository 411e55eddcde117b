"""Status of a cell's exception, and one line of text with the remedy."""

import importlib.util
import sys

from suite.records.record import Status
from suite.run.scratch import is_disk_full

_REMEDIES = {
    Status.OOM_DEVICE: "use a smaller --cache-ratio, --device-budget, --batch-size or --scale",
    Status.OOM_DISK: "make room, or set TMPDIR to a directory on a drive with more",
    Status.OOM_HOST: "use a smaller --scale, --embedding-dim or --batch-size",
}
_FULL_BYTES = 1 << 30
"""A device with less free memory counts as full: the driver needs the rest to load kernels."""
_STATUS_BY_NAME = {"WorkingSetTooLarge": Status.INFEASIBLE, "CgroupUnavailable": Status.UNSUPPORTED}
"""Status by name of exceptions whose modules are not imported here."""


def status_of(error: BaseException) -> Status:
    """The status that an exception stands for."""
    name, text = type(error).__name__, str(error)
    if name == "OutOfMemoryError" or "CUDA out of memory" in text:  # torch's allocator of device memory
        return Status.OOM_DEVICE
    if "CUDA error: out of memory" in text:  # the driver: usually it could not pin host memory
        return Status.OOM_DEVICE if _device_is_full() else Status.OOM_HOST
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return Status.OOM_HOST
    if is_disk_full(error):
        return Status.OOM_DISK
    if isinstance(error, ImportError):
        return Status.UNAVAILABLE
    return _STATUS_BY_NAME.get(name, Status.CRASHED)


def _device_is_full() -> bool:
    """Whether the CUDA device has no memory left; false if none was used."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.mem_get_info()[0] < _FULL_BYTES


def describe(error: BaseException) -> str:
    """One line that says what went wrong, and for a missing package what to install."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    if isinstance(error, ImportError) and error.name:
        package = error.name.partition(".")[0]
        if package in sys.modules or importlib.util.find_spec(package) is not None:
            return f"cannot import {error.name}: check its name, and the version of {package} ({first})"
        return f"cannot import {package}: run make setup, or pip install {package.replace('_', '-')} ({first})"
    remedy = _REMEDIES.get(status_of(error))
    return f"{type(error).__name__}: {first}" + (f"; {remedy}" if remedy else "")
