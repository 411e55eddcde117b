"""Announced batches: their ids on the host, validation, and progress."""

from dataclasses import dataclass

import torch
from torchrec import KeyedJaggedTensor, PoolingType

from systems.features import FeatureGroups, with_one_stride
from systems.freq_cache.cache.mover import Planned
from systems.freq_cache.cache.plan import Ids, check_bags
from systems.freq_cache.cache.staging import Transfer
from systems.threads import Task

PLANNED_AHEAD = 2
"""Steps from a batch's plan to its lookup. In one step the plan and the read of its rows would follow each other."""


def known_behind(look_ahead: int) -> int:
    """Number of batches behind it that are known when a batch is planned."""
    return max(look_ahead - PLANNED_AHEAD, 0)


@dataclass(eq=False)
class Coming:
    """A batch that is announced or being looked up, and how far it has come.

    Attributes:
        features: The batch that will be looked up, or another object with the same ids.
        parts: Its features for each cache.
        changes: It will be trained.
        versions: `versions_of` the features when they were announced.
        abandoned: Nobody will look it up, or its lookup has begun: the next call forgets it, unless that looks it up.
        announcing, planning: Tasks of the planning thread for it; None: not submitted yet.
        sending: Task of the sending thread, submitted once the batch is planned.
        ids: Its ids for each cache, found by the thread that announces it: the training thread has other work.
        told: The planners know of it.
        planned: Its plan in each cache.
    """

    features: KeyedJaggedTensor
    parts: list[KeyedJaggedTensor]
    changes: bool
    versions: list[tuple[int, int]]
    abandoned: bool = False
    announcing: Task[None] | None = None
    planning: Task[None] | None = None
    sending: Task[None] | None = None
    ids: list[Ids] | None = None
    told: bool = False
    planned: list[Planned] | None = None

    @property
    def written_to(self) -> bool:
        """Whether its ids have changed since it was announced."""
        return self.versions != versions_of(self.features)

    def is_again(self, other: "Coming") -> bool:
        """Whether `other` has the same ids in other tensors: moved to a device, for example, or with permuted keys."""
        same = all(
            torch.equal(own.values().long(), its.values().long())
            and torch.equal(own.lengths().long(), its.lengths().long())
            for own, its in zip(self.parts, other.parts, strict=True)
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

    Of a batch on the device, these are copied back on a stream of their own. Weights stay where they are. The bags of
    features that keep their order are checked by `Ids.of`: the training thread has other work.

    Raises:
        TypeError: it is no `KeyedJaggedTensor`.
        ValueError: see `with_one_stride`, `_check`, `check_bags` and `FeatureGroups.split`.
    """
    if not isinstance(features, KeyedJaggedTensor):
        raise TypeError(f"a batch is a KeyedJaggedTensor, not {type(features).__name__}")
    pooled = any(group.tables[0].pooling is not PoolingType.NONE for group in groups.groups)
    on_host = with_one_stride(features, pooled=pooled)
    if on_host.values().device.type != "cpu":
        values, lengths, weights = on_host.values(), on_host.lengths(), on_host.weights_or_none()
        ids, bags, stride = transfer.to_host(values), transfer.to_host(lengths), on_host.stride()
        on_host = KeyedJaggedTensor(on_host.keys(), ids.wait(), weights, lengths=bags.wait(), stride=stride)
    _check(on_host)
    if [group.features for group in groups.groups] != [tuple(on_host.keys())]:
        check_bags(on_host)  # torchrec reads by the lengths where it reorders features
    return groups.split(on_host)


def _check(features: KeyedJaggedTensor) -> None:
    """Refuse ids and bags of wrong shapes or types; see `check_bags` for their numbers.

    Raises:
        ValueError: they are not whole numbers, or not as many as the batch needs, or a feature comes twice.
    """
    ids, lengths, weights, keys = features.values(), features.lengths(), features.weights_or_none(), features.keys()
    if len(set(keys)) != len(keys):
        raise ValueError(f"features of one name: {', '.join(sorted(k for k in set(keys) if keys.count(k) > 1))}")
    for name, given in (("ids", ids), ("offsets", features.offsets_or_none())):
        if given is not None and given.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"{name} are int64 or int32, not {given.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"ids have one dimension, not {ids.dim()}")
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(f"{ids.numel():,} ids have {weights.numel():,} weights: give one for each")
    if lengths.dtype not in (torch.int64, torch.int32) or lengths.shape != (len(keys) * features.stride(),):
        raise ValueError(f"{lengths.numel():,} bags are not as many for each of {len(keys)} features")
