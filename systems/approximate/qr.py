"""The quotient-remainder trick: a row is combined from two rows of two small matrices. Source: arXiv 1909.02107."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.approximate.composed import ComposedSystem
from systems.approximate.composition import Composition, uniform
from systems.approximate.parts import TBEPart, pooled_bags
from systems.features import Group
from systems.spec import SystemSpec


class QuotientRemainder(Composition):
    """Row `id` is the product or sum of rows `id // collisions` and `id % collisions` of two matrices.

    The product, element by element, is the default of the paper and of its code.
    """

    def __init__(self, table: EmbeddingBagConfig, collisions: int, *, multiply: bool) -> None:
        super().__init__(table)
        self.collisions = collisions
        self.multiply = multiply

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"quotient": (-(-self.rows // self.collisions), self.dim), "remainder": (self.collisions, self.dim)}

    def compose(self, parameters: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        quotient = parameters["quotient"].index_select(0, ids // self.collisions)
        remainder = parameters["remainder"].index_select(0, ids % self.collisions)
        return quotient * remainder if self.multiply else quotient + remainder

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Of a sum, each part with half the variance of a row of a whole table.

        Of a product, quotients as such a row, and factors uniform in `[0.5, 1.5]`. `tricks/qr_embedding_bag.py` of
        facebookresearch/dlrm draws both from `[1 / sqrt(rows), 1]`. Rows so large, and all positive, did not learn here
        with SGD at a learning rate of 1 (AUROC 0.50).
        """
        rows = self.rows if self.multiply else 2 * self.rows
        bounds = {"quotient": rows**-0.5, "remainder": 0.5 if self.multiply else rows**-0.5}
        drawn = {name: uniform(*self.shapes[name], bound=bound, generator=generator) for name, bound in bounds.items()}
        return {**drawn, "remainder": 1 + drawn["remainder"]} if self.multiply else drawn


class QuotientRemainderPart(TBEPart):
    """Pooling is linear, so of a sum fbgemm pools the parts; those of a product it hands out id by id.

    (facebookresearch/dlrm multiplies pools, which is the same for bags of one id and not a row for every id for more.)
    """

    def __init__(self, group: Group, compositions: Sequence[QuotientRemainder], spec: SystemSpec) -> None:
        self._collisions = compositions[0].collisions
        self.pooled_inside = not compositions[0].multiply
        super().__init__(group, compositions, spec)

    def places(self, ids: Tensor, feature: Tensor) -> Sequence[Tensor]:
        return [ids // self._collisions, ids % self._collisions]

    def join(self, rows: Sequence[Tensor], batch: KeyedJaggedTensor) -> Tensor:
        quotient, remainder = rows
        if self.pooled_inside:
            return quotient + remainder
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
    part = QuotientRemainderPart

    @classmethod
    def composition(cls, table: EmbeddingBagConfig, choice: Mapping[str, str]) -> Composition:
        return QuotientRemainder(table, int(choice["collisions"]), multiply=choice["combine"] == "mult")
