"""The hashing trick: ids share a row, chosen by a hash of the id. Source: arXiv 0902.2206."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.approximate.composed import ComposedSystem, Composition, TBEPart, salt_of
from systems.features import Group
from systems.spec import SystemSpec


class HashedRows(Composition):
    """Row `id` is row `hash(id) % m` of a matrix of `m = ceil(rows / size)` rows."""

    def __init__(self, table: EmbeddingBagConfig, size: int) -> None:
        super().__init__(table, size)
        self.buckets = -(-self.rows // size)
        self.salt = salt_of(table.name)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {"buckets": (self.buckets, self.dim)}

    def places(self, ids: Tensor) -> Sequence[Tensor]:
        return [hash_ids(ids, self.salt) % self.buckets]


class HashedPart(TBEPart):
    """Hashes the ids of all tables in one call, each table with its own salt."""

    def __init__(self, group: Group, compositions: Sequence[HashedRows], spec: SystemSpec) -> None:
        super().__init__(group, compositions, spec)
        of_feature = [compositions[t] for t in group.table_of_feature]
        self._buckets = torch.tensor([made.buckets for made in of_feature], device=spec.device)
        self._salts = torch.tensor([made.salt for made in of_feature], device=spec.device)

    def places(self, ids: Tensor, feature: Tensor) -> Sequence[Tensor]:
        return [hash_ids(ids, self._salts[feature]) % self._buckets[feature]]


def hash_ids(ids: Tensor, salt: Tensor | int) -> Tensor:
    """A hash of each id, int64 in `[0, 2**31)`: the finalizer of splitmix64, with wrapping products, of id plus salt.

    Args:
        ids: int64 `[n]`.
        salt: The table's salt, below 2**32, so that collisions differ between tables; or one salt per id.
    """
    mixed = ids + (salt << 31)
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed ^ (mixed >> 31)) & (2**31 - 1)


class Hashed(ComposedSystem):
    """Large tables with a fraction of their rows, each shared by the ids of one hash: simple, paid for in quality."""

    variants = {"compression": ("4", "16", "64")}
    composition = HashedRows
    part = HashedPart
