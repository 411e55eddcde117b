"""What is calibrated: systems that compute alike share a kernel, and its costs."""

from __future__ import annotations

from enum import StrEnum

from torchrec.types import DataType

from suite.records.model import Model
from systems import registry
from systems.registry import Variant

_FBGEMM = frozenset({"full_gpu", "fbgemm_uvm", "fbgemm_uvm_caching", "cpu_embeddings"})
_TORCHREC = frozenset({"torchrec_uvm", "torchrec_uvm_caching"})


class RowType(StrEnum):
    """What rows are kept in."""

    FP32 = "fp32"
    FP16 = "fp16"

    @property
    def of_tables(self) -> DataType:
        """As torchrec says it of a table."""
        return DataType.FP32 if self is RowType.FP32 else DataType.FP16

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return 4 if self is RowType.FP32 else 2


class Kernel(Model):
    """A system variant as it computes on a device, with its type of rows."""

    variant: str
    row_type: RowType = RowType.FP32

    def __str__(self) -> str:
        return self.variant if self.row_type is RowType.FP32 else f"{self.variant} {self.row_type}"


def kernel_of(system: str, *, device: str, row_type: RowType = RowType.FP32) -> Kernel:
    """The kernel of a system variant.

    On a CPU fbgemm knows one place for rows, whatever was asked: all its systems are one kernel there, and both of
    torchrec's another. On a CUDA device every variant is its own.

    Raises:
        UnknownSystem: there is no such system or variant.
        ImportError: what it needs is not installed.
    """
    variant = Variant.parse(system)
    if device == "cpu" and variant.name in _FBGEMM:
        return Kernel(variant="full_gpu", row_type=row_type)
    if device == "cpu" and variant.name in _TORCHREC:
        return Kernel(variant="torchrec_uvm", row_type=row_type)
    return Kernel(variant=canonical(variant), row_type=row_type)


def canonical(variant: Variant) -> str:
    """A variant's name without the parameters that are at their default."""
    found = registry.load(variant)
    given = tuple((key, value) for key, value in variant.parameters if value != found.variants[key][0])
    return str(Variant(variant.name, given))


def parameters_of(system: str) -> dict[str, str]:
    """All parameters of a variant, defaults filled in."""
    variant = Variant.parse(system)
    return registry.resolved_parameters(variant, registry.load(variant))
