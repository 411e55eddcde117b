"""Small settings for the unit tests of systems; nothing is built from them."""

from collections.abc import Mapping

import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import Budget, CacheRatio, DeviceBytes, OptimizerKind, SparseOptimizer, SystemSpec


def spec(
    *tables: EmbeddingBagConfig,
    device: str = "cuda",
    kind: OptimizerKind = OptimizerKind.SGD,
    ratio: float = 0.5,
    total_bytes: int | None = None,
    batch_lookups: int = 0,
    **parameters: str,
) -> SystemSpec:
    budget: Budget = CacheRatio(ratio=ratio) if total_bytes is None else DeviceBytes(total_bytes=total_bytes)
    return SystemSpec(
        tables=tables,
        optimizer=SparseOptimizer(kind=kind, lr=0.1),
        device=torch.device(device),
        budget=budget,
        batch_lookups=batch_lookups,
        parameters=parameters,
    )


def batch(bags: Mapping[str, list[list[int]]]) -> KeyedJaggedTensor:
    lengths = torch.tensor([len(bag) for feature in bags.values() for bag in feature])
    values = torch.tensor([i for feature in bags.values() for bag in feature for i in bag], dtype=torch.int64)
    return KeyedJaggedTensor(list(bags), values, lengths=lengths)
