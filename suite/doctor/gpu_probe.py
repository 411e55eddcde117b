"""The GPU that would be measured, as its driver describes it.

Names and meanings: NVIDIA's `nvml.h` and nvidia-ml-py 13.615.71, whose calls have the same names. Nothing that is asked
changes a setting.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.doctor.finding import Unsaid

_NOT_SUPPORTED = 3
_DRIVER = Path("/proc/driver/nvidia/version")


class NotOffered(Unsaid):
    """This kind of device has no such thing."""


@dataclass(frozen=True)
class Gpu:
    """A device.

    Attributes:
        nvml: The module `pynvml`, initialised; the driver lets go of it when the process ends.
        handle: What it calls the device.
    """

    nvml: Any
    handle: Any

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 - each of NVML's calls has its own type
        """Call a function of NVML for this device.

        Raises:
            NotOffered: this kind of device has no such thing.
            Unsaid: the driver refuses, or is too old to know the function.
        """
        if not hasattr(self.nvml, function):
            raise Unsaid(f"the installed nvidia-ml-py has no {function}")
        try:
            return getattr(self.nvml, function)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            if getattr(error, "value", None) == _NOT_SUPPORTED:
                raise NotOffered(f"{function} is not offered by this device") from None
            raise Unsaid(f"{function} says: {error}") from None

    @property
    def name(self) -> str:
        """Model, as the driver names it."""
        return str(self.ask("nvmlDeviceGetName"))


def hidden(environment: Mapping[str, str]) -> bool:
    """Whether `CUDA_VISIBLE_DEVICES` hides every device."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.strip() in ("", "-1")


def open_gpu(environment: Mapping[str, str], *, nvml: Any = None, driver: Path = _DRIVER) -> Gpu | None:  # noqa: ANN401
    """The first device that CUDA would see, `CUDA_VISIBLE_DEVICES` honoured by index (in PCI order) and by UUID.

    Args:
        environment: Variables of the environment.
        nvml: In place of the module `pynvml`.
        driver: What the kernel driver shows where it is loaded.

    Returns:
        The device, or None where there is none or the environment hides all.

    Raises:
        Unsaid: there is a driver but no way to ask it, or no such device.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if hidden(environment):
        return None
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            if driver.exists():
                raise Unsaid(
                    "an NVIDIA driver is loaded but nvidia-ml-py is not installed: run `make setup BUILD=cuda`"
                ) from None
            return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if driver.exists():
            raise Unsaid(f"the NVIDIA driver is loaded but does not answer: {error}") from None
        return None
    first = (visible or "0").split(",")[0].strip()
    try:
        handle = (
            nvml.nvmlDeviceGetHandleByIndex(int(first)) if first.isdigit() else nvml.nvmlDeviceGetHandleByUUID(first)
        )
    except nvml.NVMLError as error:
        if visible is None:
            return None
        raise Unsaid(f"CUDA_VISIBLE_DEVICES={visible} names no device that the driver knows: {error}") from None
    return Gpu(nvml, handle)
