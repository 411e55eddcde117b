"""What is weighed: a system variant with a type of rows."""

from collections.abc import Iterable
from enum import StrEnum

from torchrec import EmbeddingBagConfig, PoolingType
from torchrec.types import DataType

from suite.records.model import Model


class RowType(StrEnum):
    """What rows are kept in."""

    FP32 = "fp32"
    FP16 = "fp16"

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return 4 if self is RowType.FP32 else 2


class Weighed(Model):
    """A system variant with its type of rows."""

    system: str
    row_type: RowType = RowType.FP32

    @property
    def label(self) -> str:
        """Both, for people."""
        return self.system if self.row_type is RowType.FP32 else f"{self.system} {self.row_type}"


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
