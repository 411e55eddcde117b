"""What is calibrated: systems that compute alike share a kernel."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from torchrec import EmbeddingBagConfig, PoolingType
from torchrec.types import DataType

from suite.records.model import Model
from systems import registry
from systems.registry import Variant

_SHARED = {
    **dict.fromkeys(("full_gpu", "fbgemm_uvm", "fbgemm_uvm_caching", "cpu_embeddings"), "full_gpu"),
    **dict.fromkeys(("torchrec_uvm", "torchrec_uvm_caching"), "torchrec_uvm"),
}
"""On a CPU fbgemm knows one place for rows, whatever was asked: all its systems are one kernel, torchrec's another."""


class RowType(StrEnum):
    """What rows are kept in."""

    FP32 = "fp32"
    FP16 = "fp16"

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return 4 if self is RowType.FP32 else 2


class Kernel(Model):
    """A system variant as it computes on a device, with its type of rows."""

    variant: str
    row_type: RowType = RowType.FP32

    @classmethod
    def of(cls, variant: Variant, *, device: str, row_type: RowType) -> Self:
        """The kernel of a system variant. On a CUDA device every variant is its own.

        Raises:
            UnknownSystem: there is no such system or variant.
            ImportError: what it needs is not installed.
        """
        registry.load(variant)
        shared = _SHARED.get(variant.name) if device == "cpu" else None
        return cls(variant=shared or str(variant), row_type=row_type)

    def __str__(self) -> str:
        return labelled(self.variant, self.row_type)


def labelled(system: str, row_type: RowType) -> str:
    """A variant with its type of rows, for people."""
    return system if row_type is RowType.FP32 else f"{system} {row_type}"


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
