"""Announced batches: their ids on the host, validation, and progress."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec import KeyedJaggedTensor, PoolingType

from systems.features import FeatureGroups, with_one_stride
from systems.freq_cache.cache.mover import Planned
from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.cache.staging import Transfer
from systems.freq_cache.compiled import compiled
from systems.threads import Task


@dataclass(eq=False)
class Coming:
    """A batch that is announced or being looked up, and how far it has come.

    Attributes:
        features: The batch that will be looked up, or another object with the same ids.
        parts: Its features for each cache.
        find_ids: Finds its ids for each cache.
        changes: It will be trained.
        abandoned: Nobody will look it up, or its lookup has begun: the next call forgets it, unless that looks it up.
        announcing, planning: Tasks of the planning thread for it; None: not submitted yet.
        sending: Task of the sending thread, submitted once the batch is planned.
        told: The planners know of it.
        planned: Its plan in each cache.
        planned_at: When planning ended: what can be sent ahead was sent after that.
        versions: `versions_of` the features when they were announced.
    """

    features: KeyedJaggedTensor
    parts: list[KeyedJaggedTensor]
    find_ids: Callable[[], list[Ids]]
    changes: bool
    abandoned: bool = False
    announcing: Task[None] | None = None
    planning: Task[None] | None = None
    sending: Task[None] | None = None
    told: bool = False
    planned: list[Planned] | None = None
    planned_at: float = 0.0
    versions: list[tuple[int, int]] = field(default_factory=list)

    @cached_property
    def ids(self) -> list[Ids]:
        """Its ids for each cache, found by the thread that asks first: the training thread has other work."""
        return self.find_ids()

    @property
    def written_to(self) -> bool:
        """Whether its ids have changed since it was announced."""
        return self.versions != versions_of(self.features)

    def is_again(self, other: "Coming") -> bool:
        """Whether `other` has the same ids in other tensors: moved to a device, for example, or with permuted keys."""
        same = all(
            np.array_equal(own.values, its.values) and np.array_equal(own.offsets, its.offsets)
            for own, its in zip(self.ids, other.ids, strict=True)
        )
        return same and self.changes <= other.changes

    def forget_plan(self) -> None:
        """Reset it to a batch that the planners have forgotten."""
        self.announcing = self.planning = self.sending = self.planned = None
        self.told = False


def versions_of(features: KeyedJaggedTensor) -> list[tuple[int, int]]:
    """Addresses of a batch's ids and bags, and torch's version counters, which do not count in inference mode."""
    tensors = (features.values(), features.lengths())
    return [(tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version) for tensor in tensors]


def parts_on_host(groups: FeatureGroups, transfer: Transfer, features: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
    """The features of each group: as many bags for every feature, ids and lengths on the host.

    Of a batch on the device, these are copied back on a stream of their own. Weights stay where they are.

    Raises:
        TypeError: it is no `KeyedJaggedTensor`.
        ValueError: see `with_one_stride`, `_checked` and `FeatureGroups.split`.
    """
    if not isinstance(features, KeyedJaggedTensor):
        raise TypeError(f"a batch is a KeyedJaggedTensor, not {type(features).__name__}")
    pooled = any(group.tables[0].pooling is not PoolingType.NONE for group in groups.groups)
    uniform = with_one_stride(features, pooled=pooled)
    if uniform.values().device.type == "cpu":
        return groups.split(_checked(uniform))
    values, lengths = transfer.to_host(uniform.values()), transfer.to_host(uniform.lengths())
    on_host = KeyedJaggedTensor(
        uniform.keys(), values.wait(), uniform.weights_or_none(), lengths=lengths.wait(), stride=uniform.stride()
    )
    return groups.split(_checked(on_host))


def _checked(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Return the features if their bags share out the ids; kernels would read beyond them otherwise.

    Raises:
        ValueError: they are not whole numbers, or not as many as the batch needs, or a feature comes twice.
    """
    ids, lengths, weights, keys = features.values(), features.lengths(), features.weights_or_none(), features.keys()
    if len(set(keys)) != len(keys):
        raise ValueError(f"features of one name: {', '.join(sorted(k for k in set(keys) if keys.count(k) > 1))}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids are int64 or int32, not {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"ids have one dimension, not {ids.dim()}")
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(f"{ids.numel():,} ids have {weights.numel():,} weights: give one for each")
    if lengths.dtype not in (torch.int64, torch.int32) or lengths.shape != (len(keys) * features.stride(),):
        raise ValueError(f"{lengths.numel():,} bags are not as many for each of {len(keys)} features")
    given = features.offsets_or_none()
    if given is not None and given.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"offsets are int64 or int32, not {given.dtype}")
    offsets = np.empty(0, np.int64) if given is None else given.numpy()
    if not _share_out(lengths.numpy(), offsets, ids.numel()):
        raise ValueError(f"the lengths or offsets of the bags do not share out {ids.numel():,} ids: correct them")
    return features


@compiled
def _share_out(lengths: NDArray[Any], offsets: NDArray[Any], ids: int) -> bool:
    """Whether bags of these lengths take every id once, and these are their offsets, where there are any.

    No turn of the loops depends on one before it, so several are made at a time. No sum can wrap: all ends, and all
    lengths, are compared with the ids.
    """
    beyond = other = total = np.int64(0)  # the sign of `beyond`: a number is below 0 or above the ids
    if offsets.size:
        if offsets.size != lengths.size + 1 or offsets[0] != 0 or offsets[-1] != ids:
            return False
        for i in range(lengths.size):
            length, end = np.int64(lengths[i]), np.int64(offsets[i + 1])
            beyond |= length | end | (ids - end)
            other |= (end - offsets[i]) ^ length
        return bool(beyond >= 0 and other == 0)
    for i in range(lengths.size):
        length = np.int64(lengths[i])
        beyond |= length | (ids - length)
        total += length
    return bool(beyond >= 0 and total == ids)
