"""Composition of a table's rows from fewer parameters: the definitions that composed systems are verified against."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig


class Composition(ABC):
    """Composition of one table: each row is combined from one row of every parameter matrix."""

    linear = True
    """Whether rows may be pooled matrix by matrix before they are combined."""

    def __init__(self, table: EmbeddingBagConfig) -> None:
        self.rows: int = table.num_embeddings
        self.dim: int = table.embedding_dim

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The parameter matrices, `(rows, width)` by name; row-wise optimizers keep one number for each row."""

    @abstractmethod
    def places(self, ids: Tensor) -> Sequence[Tensor]:
        """Row in each matrix for each id (int64 `[n]`), int64 `[n]` per matrix."""

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows of the table, `[n, dim]`, from rows of each matrix, `[n, width]`; the default has only one matrix."""
        (only,) = rows
        return only

    def compose(self, parameters: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        """Rows `ids` (int64 `[n]`) of the table, `[n, dim]`, differentiable with respect to the parameters."""
        places = zip(self.shapes, self.places(ids), strict=True)
        return self.combine([parameters[name].index_select(0, place) for name, place in places])

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters before training, fp32, by name: uniform, as facebookresearch/dlrm draws the rows of a table."""
        return {
            name: uniform(*shape, bound=self.rows**-0.5, generator=generator) for name, shape in self.shapes.items()
        }

    @property
    def elements(self) -> int:
        """Number of elements of all parameters."""
        return sum(rows * width for rows, width in self.shapes.values())


class Whole(Composition):
    """An uncompressed table. Small tables stay whole: they take few bytes and would lose the most quality."""

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"weight": (self.rows, self.dim)}

    def places(self, ids: Tensor) -> Sequence[Tensor]:
        return [ids]


def uniform(rows: int, width: int, *, bound: float, generator: torch.Generator) -> Tensor:
    """Uniform in +-bound, fp32 `[rows, width]`; facebookresearch/dlrm's bound for a table is `1 / sqrt(its rows)`."""
    return torch.empty(rows, width).uniform_(-bound, bound, generator=generator)


def salt_of(name: str) -> int:
    """Salt of a table, below 2**32: the same in every process, and independent of other tables."""
    return zlib.crc32(name.encode())
