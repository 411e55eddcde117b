"""Splitting a batch's features into groups that share a kernel, and joining the groups' outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
from torchrec.modules.embedding_modules import get_embedding_names_by_table, reorder_inverse_indices

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Group:
    """Tables served by one kernel call.

    Attributes:
        tables: The tables, in the order of the spec.
        places: Positions of their features among the features of all groups, in table order.
    """

    tables: tuple[EmbeddingBagConfig, ...]
    places: tuple[int, ...]

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names, table by table."""
        return tuple(name for table in self.tables for name in table.feature_names)

    @cached_property
    def table_of_feature(self) -> tuple[int, ...]:
        """Index into `tables` by feature."""
        return tuple(t for t, table in enumerate(self.tables) for _ in table.feature_names)

    @property
    def rows(self) -> int:
        """Rows of all its tables."""
        return sum(table.num_embeddings for table in self.tables)

    @property
    def dims(self) -> tuple[int, ...]:
        """Output width of every feature."""
        return tuple(self.tables[t].embedding_dim for t in self.table_of_feature)


class FeatureGroups:
    """The features of a system's tables, grouped by a key of the table (its pooling, its width); by default one group.

    `weighted`: every batch carries per-sample weights, as in `SystemSpec`.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        key: Callable[[EmbeddingBagConfig], object] = lambda table: None,
        *,
        weighted: bool = False,
    ) -> None:
        members: dict[object, tuple[list[EmbeddingBagConfig], list[int]]] = {}
        first = 0
        for table in tables:
            own, places = members.setdefault(key(table), ([], []))
            own.append(table)
            places += range(first, first + len(table.feature_names))
            first += len(table.feature_names)
        self.weighted = weighted
        self.groups = [Group(tuple(own), tuple(places)) for own, places in members.values()]
        self.names = [name for names in get_embedding_names_by_table(list(tables)) for name in names]
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]

    def split(self, features: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        """One `KeyedJaggedTensor` per group, features in the group's order.

        Raises:
            ValueError: a feature is missing, or the features carry per-sample weights where none were announced, or
                none where they were.
        """
        if (features.weights_or_none() is not None) != self.weighted:
            found, wanted = ("no ", "with") if self.weighted else ("", "without")
            raise ValueError(
                f"the batch has {found}per-sample weights, the tables were built {wanted} them: pass a "
                f"KeyedJaggedTensor {wanted} weights, or build with weighted={not self.weighted}"
            )
        keys = features.keys()
        parts = []
        for group in self.groups:
            if tuple(keys) == group.features:
                parts.append(features)
                continue
            missing = [name for name in group.features if name not in keys]
            if missing:
                raise ValueError(f"the batch has no feature {', '.join(missing)}; it has {', '.join(keys)}")
            parts.append(_reordered(features, [keys.index(name) for name in group.features]))
        return parts

    def join(self, outputs: Sequence[Tensor], inverse: tuple[list[str], Tensor] | None = None) -> KeyedTensor:
        """Pooled outputs `[batch, sum of dims]` of all groups as one `KeyedTensor` in table order.

        Keys are features, or `feature@table` where several tables serve a feature, as in torchrec. Where bags are
        those of distinct samples, `inverse` has feature names and the bag of every sample, int64 `[features, batch]`.
        """
        if len(outputs) == 1 and inverse is None:
            return KeyedTensor(self.names, self._dims, outputs[0])
        pieces = self.in_table_order(
            [piece for group, output in zip(self.groups, outputs, strict=True) for piece in output.split(group.dims, 1)]
        )
        if inverse is not None:
            bags = reorder_inverse_indices(inverse, self.names).to(outputs[0].device)
            pieces = [piece.index_select(0, own) for piece, own in zip(pieces, bags, strict=True)]
        return KeyedTensor(self.names, self._dims, torch.cat(pieces, dim=1))

    def in_table_order(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Reorder pieces, one per feature, from the order of the groups to table order."""
        places = [place for group in self.groups for place in group.places]
        return [piece for _, piece in sorted(zip(places, pieces, strict=True), key=lambda pair: pair[0])]


def with_one_stride(features: KeyedJaggedTensor, *, pooled: bool = True) -> KeyedJaggedTensor:
    """The same batch padded with empty bags, so that all features have the same number of bags.

    Raises:
        ValueError: `pooled`, a feature has fewer bags than another, and there are no inverse indices from samples to
            bags.
    """
    if not features.variable_stride_per_key():
        return features
    strides = features.stride_per_key()
    most = max(strides, default=0)
    if pooled and features.inverse_indices_or_none() is None and any(stride != most for stride in strides):
        raise ValueError(
            f"the features have {strides} bags and no inverse_indices: give a KeyedJaggedTensor that says which bag of "
            "each feature a sample has, or one with as many bags for every feature"
        )
    parts = zip(features.lengths().split(strides), strides, strict=True)
    lengths = torch.cat([nn.functional.pad(part, (0, most - stride)) for part, stride in parts])
    return KeyedJaggedTensor(
        features.keys(), features.values(), features.weights_or_none(), lengths=lengths, stride=most
    )


def _reordered(features: KeyedJaggedTensor, order: Sequence[int]) -> KeyedJaggedTensor:
    """The features at `order`, with their weights and the weights' autograd graph.

    torchrec's `permute` is not used for weights: the backward of its kernel inverts the permutation, and crashes the
    process where `order` leaves features out.
    """
    weights = features.weights_or_none()
    if weights is None:
        return features.permute(list(order))
    shape = {"stride": features.stride(), "length_per_key": features.length_per_key()}
    bare = KeyedJaggedTensor(features.keys(), features.values(), lengths=features.lengths(), **shape)
    bare = bare.permute(list(order))
    pieces = weights.split(features.length_per_key())
    return KeyedJaggedTensor(
        bare.keys(),
        bare.values(),
        torch.cat([pieces[position] for position in order]),
        lengths=bare.lengths(),
        stride=bare.stride(),
        length_per_key=bare.length_per_key(),
    )


class ConcatenatedRows:
    """The rows of a group numbered through, one table after the other: row `i` of a table is `first[table] + i`.

    `spans` has the first row and the number of rows of each feature's table, int64 `[2, features]`.
    """

    def __init__(self, group: Group, device: torch.device) -> None:
        sizes = [table.num_embeddings for table in group.tables]
        starts = list(accumulate(sizes[:-1], initial=0))
        self.first: dict[str, int] = {table.name: start for table, start in zip(group.tables, starts, strict=True)}
        self.spans = torch.tensor([[starts[t], sizes[t]] for t in group.table_of_feature], device=device).T

    def rows_of(self, batch: KeyedJaggedTensor) -> Tensor:
        """The numbers of a batch's ids, features in the group's order, int64 `[ids]`; no wait for the device.

        Raises:
            RuntimeError: an id is outside its table, where it would be a row of another; on CUDA a device assertion.
        """
        ids = batch.values().long()
        feature = feature_of_ids(batch)
        start, rows = (span.index_select(0, feature) for span in self.spans)
        torch._assert_async(((ids >= 0) & (ids < rows)).all(), "an id is outside its table")
        found: Tensor = ids + start
        return found


def feature_of_ids(batch: KeyedJaggedTensor) -> Tensor:
    """Index of each id's feature among the keys, int64 `[ids]`; does not synchronise with the device."""
    counts = batch.lengths().view(len(batch.keys()), batch.stride()).sum(dim=1)
    return torch.repeat_interleave(counts, output_size=batch.values().numel())
