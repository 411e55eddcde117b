"""The quotient-remainder trick: a row is combined from two rows of two small matrices. Source: arXiv 1909.02107."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.approximate.composed import ComposedSystem
from systems.approximate.composition import Composition, uniform
from systems.approximate.parts import TBEPart, pooled_bags


class _QuotientRemainder(Composition):
    """Row `id` has its parts in row `id // collisions` of one matrix and row `id % collisions` of the other."""

    def __init__(self, table: EmbeddingBagConfig, collisions: int) -> None:
        super().__init__(table)
        self.collisions = collisions

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"quotient": (-(-self.rows // self.collisions), self.dim), "remainder": (self.collisions, self.dim)}

    def parts(self, parameters: Mapping[str, Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
        """The two rows of each id, `[n, dim]` each."""
        quotient, remainder = ids // self.collisions, ids % self.collisions
        return parameters["quotient"].index_select(0, quotient), parameters["remainder"].index_select(0, remainder)


class Product(_QuotientRemainder):
    """The parts are multiplied, element by element: the default of the paper and of its code."""

    def compose(self, parameters: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        quotient, remainder = self.parts(parameters, ids)
        return quotient * remainder

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Quotients as the rows of a whole table start, and factors about 1: uniform in `[0.5, 1.5]`.

        `tricks/qr_embedding_bag.py` of facebookresearch/dlrm draws both from `[1 / sqrt(rows), 1]`. Rows so large, and
        all positive, did not learn here with SGD at a learning rate of 1 (AUROC 0.50).
        """
        bound = self.rows**-0.5
        return {
            "quotient": uniform(*self.shapes["quotient"], bound=bound, generator=generator),
            "remainder": 1 + uniform(*self.shapes["remainder"], bound=0.5, generator=generator),
        }


class Sum(_QuotientRemainder):
    """The parts are added."""

    def compose(self, parameters: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        quotient, remainder = self.parts(parameters, ids)
        return quotient + remainder

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Uniform about 0, each part with half the variance of a row of a whole table."""
        bound = (2 * self.rows) ** -0.5
        return {name: uniform(*shape, bound=bound, generator=generator) for name, shape in self.shapes.items()}


class _QuotientRemainderPart(TBEPart):
    def places(self, ids: Tensor, feature: Tensor) -> Sequence[Tensor]:
        collisions = self.compositions[0].shapes["remainder"][0]
        return [ids // collisions, ids % collisions]


class SumPart(_QuotientRemainderPart):
    """Pooling is linear, so fbgemm pools the parts and the pools are added."""

    def join(self, rows: Sequence[Tensor], batch: KeyedJaggedTensor) -> Tensor:
        quotient, remainder = rows
        return quotient + remainder


class ProductPart(_QuotientRemainderPart):
    """fbgemm hands the parts out id by id; their products are pooled behind it.

    (facebookresearch/dlrm multiplies pools, which is the same for bags of one id and not a row for every id for more.)
    """

    pooled_inside = False

    def join(self, rows: Sequence[Tensor], batch: KeyedJaggedTensor) -> Tensor:
        quotient, remainder = rows
        every = torch.arange(len(quotient), device=quotient.device)
        return pooled_bags(quotient * remainder, every, batch, self.pooling)


class QR(ComposedSystem):
    """Large tables in two small ones each."""

    about = (
        "Large tables as the products or sums of two small ones, by quotient and remainder of the id, in GPU memory: "
        "few bytes, and still a row of its own for every id."
    )
    variants = {"collisions": ("4", "16", "64"), "combine": ("mult", "add")}
    whole_below = 200  # the default of --qr-threshold in facebookresearch/dlrm
    parts = {Product: ProductPart, Sum: SumPart}

    @classmethod
    def composition(cls, table: EmbeddingBagConfig, choice: Mapping[str, str]) -> Composition:
        kind = Product if choice["combine"] == "mult" else Sum
        return kind(table, int(choice["collisions"]))
