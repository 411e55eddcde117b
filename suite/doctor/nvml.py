"""The GPU that would be measured, as its driver describes it through nvidia-ml-py. Nothing that is asked changes it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.doctor.finding import Unsaid

_DRIVER = Path("/proc/driver/nvidia/version")
"""What the kernel driver shows where it is loaded."""


@dataclass(frozen=True)
class Gpu:
    """A device.

    Attributes:
        nvml: The module `pynvml`, initialised; the driver lets go of it when the process ends.
        handle: What it calls the device.
        error: Why the driver cannot be asked.
    """

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


def open_gpu(environment: Mapping[str, str]) -> Gpu | None:
    """The first device that CUDA would see, `CUDA_VISIBLE_DEVICES` honoured by index (in PCI order) and by UUID.

    Returns:
        The device, or None where there is none or the environment hides all.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
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
