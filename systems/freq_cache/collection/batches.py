"""Batches on their way to the cache: their ids on the host, and what is wrong with them."""

from typing import Any, cast

import torch
from torch import nn
from torch.fx import Proxy, Tracer
from torchrec import KeyedJaggedTensor, PoolingType

from systems.features import FeatureGroups, with_one_stride
from systems.freq_cache.cache import Transfer


def parts_on_host(groups: FeatureGroups, transfer: Transfer, features: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
    """The features of each group: as many bags for every feature, ids and lengths on the host.

    Of a batch on the device, these are copied back on a stream of their own. Weights stay where they are.

    Raises:
        ValueError: see `with_one_stride`, `_checked` and `FeatureGroups.split`.
    """
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
    """The same features, whose bags are those of its ids; kernels would read beyond them.

    Raises:
        ValueError: they are not whole numbers, or not as many as the batch needs.
    """
    ids, lengths, weights = features.values(), features.lengths(), features.weights_or_none()
    given, keys = features.offsets_or_none(), features.keys()
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids are int64 or int32, not {ids.dtype}")
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(f"{ids.numel():,} ids have {weights.numel():,} weights: give one for each")
    if lengths.numel() != len(keys) * features.stride():
        raise ValueError(f"{lengths.numel():,} bags are not as many for each of {len(keys)} features")
    least = int(lengths.min()) if lengths.numel() else 0
    if least < 0 or int(lengths.sum()) != ids.numel() or (given is not None and int(given[0]) != 0):
        raise ValueError(f"the lengths of the bags do not share out {ids.numel():,} ids: correct them")
    return features


def as_leaf(module: nn.Module, features: Proxy) -> Any:  # noqa: ANN401 - what a trace takes for an output
    """What a module gives where `torch.fx` traces the model around it, as torchrec's pipelines do: it stays whole."""
    tracer = cast(Tracer, features.tracer)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (features,), {})
