"""What is calibrated, and what was measured: systems that compute alike share a kernel, and its costs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from torchrec import EmbeddingBagConfig, PoolingType
from torchrec.types import DataType

from suite.advise.costs import Line
from suite.advise.shape import Shape
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
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return 4 if self is RowType.FP32 else 2


def configs(tables: Iterable[tuple[str, int]], *, dim: int, row_type: RowType) -> tuple[EmbeddingBagConfig, ...]:
    """Tables by name and rows as torchrec describes them: one feature each, sum pooling."""
    return tuple(
        EmbeddingBagConfig(
            name=name,
            embedding_dim=dim,
            num_embeddings=rows,
            feature_names=[name],
            pooling=PoolingType.SUM,
            data_type=DataType[row_type.name],
        )
        for name, rows in tables
    )


def labelled(system: str, row_type: RowType) -> str:
    """A variant with its type of rows, for people."""
    return system if row_type is RowType.FP32 else f"{system} {row_type}"


class Kernel(Model):
    """A system variant as it computes on a device, with its type of rows."""

    variant: str
    row_type: RowType = RowType.FP32

    def __str__(self) -> str:
        return labelled(self.variant, self.row_type)


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


class KernelCosts(Model):
    """The named costs of one kernel.

    Without a look-ahead all is on the training thread: `lookup`, `update`, and where a system shows its seams,
    `planning` and `moving` apart from `lookup`. With one, planning is on a thread beside: `beside` is what it takes
    there, `slowed` what training loses by it, and `lookup` includes any wait for it.
    """

    kernel: Kernel
    dense_s: float
    """Of all but the embeddings, beside this kernel: it finds the processor's caches as lookups leave them."""
    lookup: Line
    update: Line
    planning: Line = Line()
    moving: Line = Line()
    beside: Line = Line()
    slowed: Line = Line()


class ShapeCosts(Model):
    """The costs of a step of one shape."""

    shape: Shape
    kernels: tuple[KernelCosts, ...]
    refused: dict[str, str] = {}
    """Why a kernel could not be built here, by kernel."""

    def of(self, kernel: Kernel) -> KernelCosts | None:
        """The costs of a kernel; None: it was not calibrated."""
        return next((costs for costs in self.kernels if costs.kernel == kernel), None)


class Calibration(Model):
    """All that was calibrated, and where."""

    cpu: str
    gpu: str | None
    shapes: tuple[ShapeCosts, ...]

    def of(self, shape: Shape) -> ShapeCosts | None:
        """The costs of a shape; None: it was not calibrated."""
        return next((costs for costs in self.shapes if costs.shape == shape), None)
