"""Small settings for the unit tests of systems; nothing is built from them."""

from collections.abc import Mapping, Sequence

import torch
from torchrec import EmbeddingBagConfig

from systems.contract import Budget, CacheRatio, DeviceBytes, OptimizerKind, SparseOptimizer, SystemSpec


def spec(
    *tables: EmbeddingBagConfig,
    device: str = "cuda",
    kind: OptimizerKind = OptimizerKind.SGD,
    lr: float = 0.1,
    ratio: float = 0.5,
    total_bytes: int | None = None,
    batch_lookups: int = 0,
    frequencies: Mapping[str, Sequence[int]] | None = None,
    **parameters: str,
) -> SystemSpec:
    budget: Budget = CacheRatio(ratio=ratio) if total_bytes is None else DeviceBytes(total_bytes=total_bytes)
    return SystemSpec(
        tables=tables,
        optimizer=SparseOptimizer(kind=kind, lr=lr),
        device=torch.device(device),
        budget=budget,
        batch_lookups=batch_lookups,
        frequencies=None if frequencies is None else {name: torch.tensor(of) for name, of in frequencies.items()},
        parameters=parameters,
    )
