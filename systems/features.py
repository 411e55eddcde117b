"""Cutting a batch's features into groups that share a kernel, and joining what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor


@dataclass(frozen=True)
class Group:
    """Tables served by one kernel call.

    Attributes:
        tables: The tables, in the order of the spec.
        features: Their features, table by table.
        table_of_feature: Index into `tables` by feature.
    """

    tables: tuple[EmbeddingBagConfig, ...]
    features: tuple[str, ...]
    table_of_feature: tuple[int, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """Output width of every feature."""
        return tuple(self.tables[t].embedding_dim for t in self.table_of_feature)


class FeatureGroups:
    """The features of a system's tables, grouped by a key of the table (its pooling, its width).

    `weighted` says whether every batch carries per-sample weights, as its spec does.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        key: Callable[[EmbeddingBagConfig], object],
        *,
        weighted: bool = False,
    ) -> None:
        by_key: dict[object, list[EmbeddingBagConfig]] = {}
        for table in tables:
            by_key.setdefault(key(table), []).append(table)
        self.weighted = weighted
        self.groups = [_group(members) for members in by_key.values()]
        self._keys = [name for table in tables for name in table.feature_names]
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]

    def split(self, features: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        """One `KeyedJaggedTensor` per group, features in the group's order.

        Raises:
            ValueError: a feature is missing, or the features carry per-sample weights where none were announced, or
                none where they were.
        """
        has_weights = features.weights_or_none() is not None
        if has_weights and not self.weighted:
            raise ValueError(
                "the batch has per-sample weights, the tables were built without: pass a KeyedJaggedTensor without "
                "weights, or build with weighted=True"
            )
        if self.weighted and not has_weights:
            raise ValueError(
                "the batch has no per-sample weights, the tables were built for them: pass a KeyedJaggedTensor with "
                "weights (1 where there is none), or build with weighted=False"
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

    def join(self, outputs: Sequence[Tensor]) -> KeyedTensor:
        """Pooled outputs `[batch, sum of dims]` of all groups as one `KeyedTensor` in table order."""
        if len(outputs) == 1:
            return KeyedTensor(self._keys, self._dims, outputs[0])
        pieces: dict[str, Tensor] = {}
        for group, output in zip(self.groups, outputs, strict=True):
            pieces.update(zip(group.features, output.split(group.dims, dim=1), strict=True))
        return KeyedTensor(self._keys, self._dims, torch.cat([pieces[name] for name in self._keys], dim=1))


def _reordered(features: KeyedJaggedTensor, order: Sequence[int]) -> KeyedJaggedTensor:
    """The features at `order`, weights and the way back to them included.

    torchrec's `permute` would do, but for the backward of its kernel: it inverts the permutation, and where `order`
    leaves features out that ends the process.
    """
    weights = features.weights_or_none()
    if weights is None:
        return features.permute(list(order))
    counts = features.length_per_key()
    bare = KeyedJaggedTensor(
        features.keys(), features.values(), lengths=features.lengths(), stride=features.stride(), length_per_key=counts
    ).permute(list(order))
    pieces = weights.split(counts)
    return KeyedJaggedTensor(
        bare.keys(),
        bare.values(),
        torch.cat([pieces[position] for position in order]),
        lengths=bare.lengths(),
        stride=bare.stride(),
        length_per_key=bare.length_per_key(),
    )


def _group(tables: Sequence[EmbeddingBagConfig]) -> Group:
    return Group(
        tables=tuple(tables),
        features=tuple(name for table in tables for name in table.feature_names),
        table_of_feature=tuple(t for t, table in enumerate(tables) for _ in table.feature_names),
    )
