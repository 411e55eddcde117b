"""Batches on their way to the cache: read ahead of training, their ids on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, cast

from torch import nn
from torch.fx import Proxy, Tracer
from torchrec import KeyedJaggedTensor, PoolingType

from systems.features import FeatureGroups, with_one_stride
from systems.freq_cache.cache import checked
from systems.freq_cache.transfer import Transfer

Batch = TypeVar("Batch")


def announced(batches: Iterable[Batch], announce: Callable[[Batch], bool], *, look_ahead: int) -> Iterator[Batch]:
    """The same batches, each announced as early as `look_ahead` allows.

    Args:
        batches: In the order of their lookups. Whoever takes them may be some ahead of the lookups.
        announce: Announces one of them, in order, or says that there is no room for it yet.
        look_ahead: Batches beyond the one in hand.
    """
    source, waiting, unannounced = iter(batches), deque[Batch](), deque[Batch]()
    while True:
        for batch in islice(source, look_ahead + 1 - len(waiting)):
            waiting.append(batch)
            unannounced.append(batch)
        while unannounced and announce(unannounced[0]):
            unannounced.popleft()
        if not waiting:
            return
        if unannounced and unannounced[0] is waiting[0]:
            unannounced.popleft()  # too late: it may be looked up before the next one is asked for
        yield waiting.popleft()


def parts_on_host(groups: FeatureGroups, transfer: Transfer, features: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
    """The features of each group: as many bags for every feature, ids and lengths on the host.

    Of a batch on the device, these are copied back on a stream of their own. Weights stay where they are.

    Raises:
        ValueError: see `with_one_stride`, `checked` and `FeatureGroups.split`.
    """
    pooled = any(group.tables[0].pooling is not PoolingType.NONE for group in groups.groups)
    uniform = with_one_stride(features, pooled=pooled)
    if uniform.values().device.type == "cpu":
        return groups.split(checked(uniform))
    values, lengths = transfer.to_host(uniform.values()), transfer.to_host(uniform.lengths())
    on_host = KeyedJaggedTensor(
        uniform.keys(), values.wait(), uniform.weights_or_none(), lengths=lengths.wait(), stride=uniform.stride()
    )
    return groups.split(checked(on_host))


def as_leaf(module: nn.Module, features: Proxy) -> Any:  # noqa: ANN401 - what a trace takes for an output
    """What a module gives where `torch.fx` traces the model around it, as torchrec's pipelines do: it stays whole."""
    tracer = cast(Tracer, features.tracer)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (features,), {})
