"""How the rows of a table are made of fewer parameters: the definitions that composed systems are verified against."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig


class Composition(ABC):
    """How the rows of one table are made: each of one row of every parameter matrix."""

    linear = True
    """Whether rows may be pooled matrix by matrix first, and combined then."""

    def __init__(self, table: EmbeddingBagConfig) -> None:
        self.rows: int = table.num_embeddings
        self.dim: int = table.embedding_dim

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The parameter matrices, `(rows, width)` by name; row-wise optimizers keep one number for each row."""

    @abstractmethod
    def places(self, ids: Tensor) -> Sequence[Tensor]:
        """The row of each matrix that each id (int64 `[n]`) takes, int64 `[n]`."""

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows of the table, `[n, dim]`, from those of each matrix, `[n, width]`; by default there is only one."""
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
        """Numbers that the parameters hold."""
        return sum(rows * width for rows, width in self.shapes.values())


class Whole(Composition):
    """A table as it is. Small ones stay so: they are hardly worth a byte, and would lose most."""

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"weight": (self.rows, self.dim)}

    def places(self, ids: Tensor) -> Sequence[Tensor]:
        return [ids]


def uniform(rows: int, width: int, *, bound: float, generator: torch.Generator) -> Tensor:
    """Uniform in +-bound, fp32 `[rows, width]`; facebookresearch/dlrm's bound for a table is `1 / sqrt(its rows)`."""
    return torch.empty(rows, width).uniform_(-bound, bound, generator=generator)


def salt_of(name: str) -> int:
    """A number below 2**32 of a table's own: the same in every process, whatever other tables there are."""
    return zlib.crc32(name.encode())
