"""The quotient-remainder trick: a row is combined from two rows of two small matrices. Source: arXiv 1909.02107."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.approximate.composed import ComposedSystem
from systems.approximate.composition import Composition, uniform


class QuotientRemainder(Composition):
    """Row `id` is the product or sum of rows `id // collisions` and `id % collisions` of two matrices.

    The elementwise product is the default of the paper and of its code. Products are pooled row by row, sums matrix by
    matrix. (facebookresearch/dlrm multiplies pooled vectors, which is the same only for bags of one id.)
    """

    def __init__(self, table: EmbeddingBagConfig, collisions: int, *, multiply: bool) -> None:
        super().__init__(table)
        self.collisions = collisions
        self.linear = not multiply

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"quotient": (-(-self.rows // self.collisions), self.dim), "remainder": (self.collisions, self.dim)}

    def places(self, ids: Tensor) -> Sequence[Tensor]:
        return [ids // self.collisions, ids % self.collisions]

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        quotient, remainder = rows
        return quotient + remainder if self.linear else quotient * remainder

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the initial matrices; for a sum, each with half the variance of a row of a whole table.

        For a product, quotients like such a row, and remainders uniform in `[0.5, 1.5]`. `tricks/qr_embedding_bag.py`
        of facebookresearch/dlrm draws both from `[1 / sqrt(rows), 1]`. Rows so large, and all positive, did not learn
        here with SGD at a learning rate of 1 (AUROC 0.50).
        """
        rows = 2 * self.rows if self.linear else self.rows
        bounds = {"quotient": rows**-0.5, "remainder": rows**-0.5 if self.linear else 0.5}
        drawn = {name: uniform(*self.shapes[name], bound=bound, generator=generator) for name, bound in bounds.items()}
        return drawn if self.linear else {**drawn, "remainder": 1 + drawn["remainder"]}


class QR(ComposedSystem):
    """Large tables, each composed of two small ones."""

    about = (
        "Large tables as the products or sums of two small ones, by quotient and remainder of the id, in GPU memory: "
        "few bytes, and still a row of its own for every id."
    )
    variants = {"collisions": ("4", "16", "64"), "combine": ("mult", "add")}
    whole_below = 200  # the default of --qr-threshold in facebookresearch/dlrm

    @classmethod
    def composition(cls, table: EmbeddingBagConfig, choice: Mapping[str, str]) -> Composition:
        return QuotientRemainder(table, int(choice["collisions"]), multiply=choice["combine"] == "mult")
