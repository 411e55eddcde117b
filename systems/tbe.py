"""fbgemm's table-batched embedding (TBE), live: building one, reading and writing its rows, weighing it.

Facts used here were read in fbgemm v1.8.0 `split_table_batched_embeddings_ops_training.py` and hold in v1.6.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    CacheAlgorithm,
    EmbeddingLocation,
    PoolingMode,
    RecordCacheMetrics,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor
from torchrec import PoolingType

from systems.contract import Anatomy, OptimizerKind, Placement, Purpose, Rows, SparseOptimizer, Tier

TBE: TypeAlias = SplitTableBatchedEmbeddingBagsCodegen

WAYS = 32
"""Associativity of fbgemm's cache on NVIDIA devices."""

OPTIMIZERS = {
    OptimizerKind.SGD: EmbOptimType.EXACT_SGD,
    OptimizerKind.ROWWISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    OptimizerKind.ADAM: EmbOptimType.ADAM,
}
_POOLING = {PoolingType.SUM: PoolingMode.SUM, PoolingType.MEAN: PoolingMode.MEAN}
POLICIES = {"lru": CacheAlgorithm.LRU, "lfu": CacheAlgorithm.LFU}

ROW_LOCATIONS = {"DEVICE": "device", "MANAGED": "uvm", "MANAGED_CACHING": "uvm with device cache", "HOST": "host"}


def build_tbe(
    shapes: Sequence[tuple[int, int]],
    *,
    table_of_feature: Sequence[int],
    pooling: PoolingType,
    optimizer: SparseOptimizer,
    device: torch.device,
    location: EmbeddingLocation = EmbeddingLocation.DEVICE,
    **cache_options: Any,  # noqa: ANN401 - passed to fbgemm as they are
) -> TBE:
    """A TBE of tables `(rows, dim)` whose update is fused into backward.

    On a CPU the location is HOST whatever was asked: fbgemm has no other there. Ids out of range raise an error
    instead of being replaced by 0, which is fbgemm's default.
    """
    on_cpu = device.type == "cpu"
    where = EmbeddingLocation.HOST if on_cpu else location
    compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    return TBE(
        embedding_specs=[(rows, dim, where, compute) for rows, dim in shapes],
        feature_table_map=list(table_of_feature),
        pooling_mode=_POOLING[pooling],
        device=device,
        bounds_check_mode=BoundsCheckMode.FATAL,
        stochastic_rounding=False,
        **optimizer_options(optimizer),
        **({} if on_cpu else cache_options),
    )


def optimizer_options(optimizer: SparseOptimizer) -> dict[str, Any]:
    """TBE arguments of an optimizer, every hyper-parameter explicit."""
    return {
        "optimizer": OPTIMIZERS[optimizer.kind],
        "learning_rate": optimizer.lr,
        "eps": optimizer.eps,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "weight_decay": 0.0,
    }


def counting_metrics(policy: str) -> RecordCacheMetrics:
    """LFU fills only one field of the cache statistics; its misses need fbgemm's miss counter."""
    return RecordCacheMetrics(policy == "lfu", False)


def load_tbe_rows(tbe: TBE, *, table: int, start: int, rows: Rows, states: Sequence[str]) -> None:
    """Overwrite rows from `start` on; a cache in front of them is emptied first, or it would serve stale rows."""
    if tbe.lxu_cache_weights.numel():
        tbe.flush()
        tbe.reset_cache_states()
    stop = start + rows.weights.shape[0]
    tbe.split_embedding_weights()[table][start:stop].copy_(rows.weights)
    for name, state in zip(states, _states(tbe, table), strict=True):
        if name in rows.state:
            state[start:stop].copy_(rows.state[name])
        else:
            state[start:stop].zero_()


def read_tbe_rows(tbe: TBE, *, table: int, ids: Tensor, states: Sequence[str]) -> Rows:
    """Copies of rows on the host, written back from the cache first."""
    if tbe.lxu_cache_weights.numel():
        tbe.flush()
    weights = tbe.split_embedding_weights()[table]
    picked = {name: _pick(s, ids) for name, s in zip(states, _states(tbe, table), strict=True)}
    return Rows(_pick(weights, ids), picked)


def tbe_anatomy(tbes: Iterable[TBE], *, host_rows_are: Tier) -> Anatomy:
    """Bytes of live TBEs by tier and purpose.

    Args:
        tbes: The TBEs.
        host_rows_are: The tier that HOST tensors count as: `device` where the CPU itself is the computing device.
    """
    anatomy: Anatomy = {}

    def add(tier: Tier, purpose: Purpose, tensor: object) -> None:
        if isinstance(tensor, Tensor) and tensor.numel() > 1:
            anatomy[tier, purpose] = anatomy.get((tier, purpose), 0) + tensor.nbytes

    for tbe in tbes:
        for suffix, tier in (("dev", Tier.DEVICE), ("uvm", Tier.HOST), ("host", host_rows_are)):
            add(tier, Purpose.ROWS, getattr(tbe, f"weights_{suffix}"))
            add(tier, Purpose.STATE, getattr(tbe, f"momentum1_{suffix}", None))
            add(tier, Purpose.STATE, getattr(tbe, f"momentum2_{suffix}", None))
        add(Tier.DEVICE, Purpose.ROWS, tbe.lxu_cache_weights)
        if tbe.lxu_cache_weights.numel():
            for name in ("lxu_cache_state", "lxu_state", "lxu_cache_locking_counter", "cache_index_table_map"):
                add(Tier.DEVICE, Purpose.INDEX, getattr(tbe, name))
    return anatomy


def tbe_placement(tbes: Sequence[TBE]) -> Placement:
    """Where live TBEs keep their rows: torchrec builds HOST tables without a word when asked for UVM on a CPU."""
    locations = {spec[2].name for tbe in tbes for spec in tbe.embedding_specs}
    if any(tbe.use_cpu for tbe in tbes):
        return Placement(label="host-resident", offloads=False)
    label = " + ".join(ROW_LOCATIONS[name] for name in sorted(locations))
    offloads = locations != {"DEVICE"}
    if offloads:
        mapped = {bool(tbe.uvm_host_mapped) for tbe in tbes}
        label += " (host-mapped)" if mapped == {True} else " (managed)" if mapped == {False} else " (mixed)"
    return Placement(label=label, offloads=offloads)


def _states(tbe: TBE, table: int) -> list[Tensor]:
    states = tbe.split_optimizer_states()
    return list(states[table]) if states else []


def _pick(rows: Tensor, ids: Tensor) -> Tensor:
    return rows.index_select(0, ids.to(rows.device)).cpu()
