"""A machine that one does not have, described in a file: bandwidths, rates and memory, each with its source."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suite.records.options import BadOption

EXAMPLES = ("a100", "h100", "h200")
"""Machines that come along, by name."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Attained(_Strict):
    """Shares of the peaks that kernels reach."""

    memory: float = Field(gt=0, le=1)
    flops: float = Field(gt=0, le=1)


class Hardware(_Strict):
    """A machine with one CUDA device. JSON; see the examples beside this module."""

    name: str = Field(min_length=1)
    device_memory_bytes: int = Field(gt=0)
    memory_gb_per_s: float = Field(gt=0)
    """Of the device, at its peak."""
    link_to_device_gb_per_s: float = Field(gt=0)
    """What copies from pinned memory reach, not the peak of the bus."""
    link_to_host_gb_per_s: float = Field(gt=0)
    fp32_flops: float = Field(gt=0)
    tf32_flops: float | None = Field(default=None, gt=0)
    """None: the device has no TF32."""
    launch_s: float = Field(gt=0)
    """Of one operation, as the host queues them one after another."""
    host_gather_gb_per_s: float = Field(gt=0)
    """Rows picked at random in host memory, all threads together."""
    host_planning_ids_per_s: float = Field(gt=0)
    """Ids that the planner of our cache gets through, all threads together."""
    attained: Attained
    sources: dict[str, str] = Field(min_length=1)
    """Where each figure comes from, by field; `assumed` where it is a guess, with what it rests on."""


def load_hardware(name: str) -> Hardware:
    """A described machine: one of `EXAMPLES`, or a file.

    Raises:
        BadOption: it cannot be read, or a field is missing, unknown or out of range; the message names file and field.
    """
    if name in EXAMPLES:
        text = files("suite.advise").joinpath("hardware", f"{name}.json").read_text(encoding="utf-8")
    else:
        text = _read(Path(name))
    try:
        return Hardware.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        what = f"field {field}: {first['msg']}" if field else f"not a JSON object: {first['msg']}"
        raise BadOption(f"--hardware {name}: {what}; compare suite/advise/hardware/a100.json") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadOption(f"--hardware {path}: it is not text; give a JSON file, or {', '.join(EXAMPLES)}") from None
    except OSError as error:
        raise BadOption(
            f"--hardware {path} cannot be read ({error.strerror}): give a JSON file, or {', '.join(EXAMPLES)}"
        ) from None


class Matmul(StrEnum):
    """In which precision matrices are multiplied: torch's default is fp32 since 1.12, and was tf32 before."""

    FP32 = "fp32"
    TF32 = "tf32"
