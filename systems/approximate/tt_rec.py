"""Tensor-train tables: a row is a product of three small matrices. Source: TT-Rec, arXiv 2101.11714."""

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.approximate.composed import ComposedSystem, Composition, DefinitionPart, pooled_bags


class TensorTrain(Composition):
    """Row `id`, seen as a block `[d1, d2, d3]`, is `first[i1] x middle[i2] x last[i3]`.

    `(i1, i2, i3)` are the digits of `id` to the bases `(n1, n2, n3)`; a slice of the cores is `[d1, rank]`,
    `[rank, d2, rank]` and `[rank, d3]`.

    Attributes:
        bases: `n1 n2 n3 >= rows`, near each other.
        dims: `d1 d2 d3 = dim`, near each other, the smallest in the middle, as middle slices have `d2 rank^2` elements.
    """

    def __init__(self, table: EmbeddingBagConfig, size: int) -> None:
        super().__init__(table, size)
        n1 = math.ceil(self.rows ** (1 / 3))
        n2 = math.ceil((self.rows / n1) ** 0.5)
        self.bases = n1, n2, -(-self.rows // (n1 * n2))
        dim, divisors = self.dim, [d for d in range(1, self.dim + 1) if self.dim % d == 0]
        triples = [(a, b, dim // (a * b)) for a, b in itertools.product(divisors, divisors) if dim % (a * b) == 0]
        low, mid, high = sorted(min(triples, key=lambda triple: (sum(triple), triple)))
        self.dims = high, low, mid

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        (n1, n2, n3), (d1, d2, d3), rank = self.bases, self.dims, self.size
        return {"first": (n1, d1 * rank), "middle": (n2, rank * d2 * rank), "last": (n3, rank * d3)}

    def places(self, ids: Tensor) -> Sequence[Tensor]:
        _, n2, n3 = self.bases
        return ids // (n2 * n3), ids // n3 % n2, ids % n3

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        first, middle, last = rows
        (d1, d2, d3), rank = self.dims, self.size
        blocks = first.view(-1, d1, rank), middle.view(-1, rank, d2, rank), last.view(-1, rank, d3)
        return torch.einsum("nar,nrbs,nsc->nabc", *blocks).flatten(1)

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw all cores from one normal, so that an element of a row has the variance of facebookresearch/dlrm's.

        That is `1 / (3 rows)`, as in TT-Rec (section 3.2); an element is a sum of `rank` squared products of three
        factors. TT-Rec samples its normal without values near 0, so that fewer products are near 0.
        """
        deviation = (3 * self.rows * self.size**2) ** (-1 / 6)
        return {name: torch.randn(shape, generator=generator) * deviation for name, shape in self.shapes.items()}


class TrainsPart(DefinitionPart):
    """Cores in plain PyTorch. The first two cores are multiplied as whole matrices once per step, for any ids.

    One matrix product is several times faster than a product of slices per id, and its result takes 5 MB for a table
    of a million rows (rank 16, dim 32): `n1 n2` blocks of `d1 d2 rank` numbers.
    """

    compositions: Sequence[TensorTrain]

    def look_up(self, batch: KeyedJaggedTensor) -> Tensor:
        counts = [0] * len(self.compositions)
        for table, count in zip(self.group.table_of_feature, batch.length_per_key(), strict=True):
            counts[table] += count
        rows, places, behind = [], [], 0
        for table, ids in enumerate(batch.values().split(counts)):
            distinct, place = ids.unique(return_inverse=True)
            rows.append(_rows_of(self.compositions[table], self.live[table], distinct))
            places.append(place + behind)
            behind += distinct.numel()
        return pooled_bags(torch.cat(rows), torch.cat(places), batch)


def _rows_of(train: TensorTrain, cores: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    """Rows `ids` (int64 `[n]`) of a table, `[n, dim]`."""
    i1, i2, i3 = train.places(ids)
    i1 = i1.where((ids >= 0) & (ids < train.rows), train.bases[0])  # an id outside gets a slice that PyTorch refuses
    (n1, n2, _), (d1, d2, d3), rank = train.bases, train.dims, train.size
    middle = cores["middle"].view(n2, rank, d2 * rank).transpose(0, 1).reshape(rank, n2 * d2 * rank)
    pairs = (cores["first"].view(n1 * d1, rank) @ middle).view(n1 * d1 * n2, d2 * rank)
    where = (i1.unsqueeze(1) * d1 + torch.arange(d1, device=ids.device)) * n2 + i2.unsqueeze(1)
    left = embedding(where, pairs).view(-1, d1 * d2, rank)
    right = embedding(i3, cores["last"]).view(-1, rank, d3)
    return torch.bmm(left, right).flatten(1)


class TTRec(ComposedSystem):
    """Large tables as tensor trains, rows multiplied out of three small cores: fewest bytes, most work for a row."""

    variants = {"rank": ("16", "8", "32")}
    composition = TensorTrain
    part = TrainsPart
