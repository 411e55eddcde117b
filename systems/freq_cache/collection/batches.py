"""Batches on their way to the cache: their ids on the host, and what is wrong with them."""

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.fx import Proxy, Tracer
from torchrec import KeyedJaggedTensor, PoolingType

from systems.features import FeatureGroups, with_one_stride
from systems.freq_cache.cache import Transfer
from systems.freq_cache.compiled import compiled


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
    """The same features, whose bags are those of its ids; kernels would read beyond them.

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
    """Whether bags of these lengths take every id once, and these are their offsets, where there are any."""
    if offsets.size and (offsets.size != lengths.size + 1 or offsets[0] != 0):
        return False
    end = 0
    for i in range(lengths.size):
        if lengths[i] < 0:
            return False
        end += lengths[i]
        if end > ids or (offsets.size and offsets[i + 1] != end):
            return False
    return end == ids


def as_leaf(module: nn.Module, features: Proxy) -> Any:  # noqa: ANN401 - what a trace takes for an output
    """What a module gives where `torch.fx` traces the model around it, as torchrec's pipelines do: it stays whole."""
    tracer = cast(Tracer, features.tracer)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (features,), {})
