"""The quotient-remainder trick: a row is combined from two rows of two small matrices. Source: arXiv 1909.02107."""

from collections.abc import Sequence

import torch
from torch import Tensor

from systems.approximate.composed import ComposedSystem, Composition, uniform


class QuotientRemainder(Composition):
    """Row `id` is the elementwise product of rows `id // size` and `id % size` of two matrices.

    That is the default of the paper and of its code, facebookresearch/dlrm, which multiplies pooled vectors: the same
    only for bags of one id.
    """

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"quotient": (-(-self.rows // self.size), self.dim), "remainder": (self.size, self.dim)}

    def places(self, ids: Tensor) -> Sequence[Tensor]:
        return [ids // self.size, ids % self.size]

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        quotient, remainder = rows
        return quotient * remainder

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw quotients like rows of a whole table, and remainders uniform in `[0.5, 1.5]`.

        `tricks/qr_embedding_bag.py` of facebookresearch/dlrm draws both from `[1 / sqrt(rows), 1]`. Rows so large, and
        all positive, did not learn here with SGD at a learning rate of 1 (AUROC 0.50).
        """
        shapes = self.shapes
        quotient = uniform(*shapes["quotient"], bound=self.rows**-0.5, generator=generator)
        return {"quotient": quotient, "remainder": 1 + uniform(*shapes["remainder"], bound=0.5, generator=generator)}


class QR(ComposedSystem):
    """Large tables as products of two small ones, by quotient and remainder of the id: a row of its own for each id."""

    variants = {"collisions": ("4", "16", "64")}
    composition = QuotientRemainder
    whole_below = 200  # the default of --qr-threshold in facebookresearch/dlrm
