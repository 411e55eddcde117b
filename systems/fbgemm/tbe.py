"""fbgemm's table-batched embedding (TBE): building one, reading and writing its rows, counting its bytes.

Facts used here were read in fbgemm v1.8.0, `split_table_batched_embeddings_ops_training.py`; they hold in v1.6.0 and
v1.9.0 too.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any, TypeAlias

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, CacheAlgorithm, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torch import Tensor
from torchrec import PoolingType
from torchrec.modules.embedding_configs import pooling_type_to_pooling_mode

from systems.answers import MemoryBreakdown, MemoryUse, Rows, Tier, total_of
from systems.spec import OptimizerKind, SparseOptimizer

TBE: TypeAlias = SplitTableBatchedEmbeddingBagsCodegen

WAYS = 32
"""Associativity of fbgemm's cache on NVIDIA devices."""

OPTIMIZERS = {
    OptimizerKind.SGD: EmbOptimType.EXACT_SGD,
    OptimizerKind.ROWWISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    OptimizerKind.ADAGRAD: EmbOptimType.EXACT_ADAGRAD,
    OptimizerKind.ADAM: EmbOptimType.ADAM,
}
POLICIES = {"lru": CacheAlgorithm.LRU, "lfu": CacheAlgorithm.LFU}

_PICKED_ROWS = 1 << 20


def build_tbe(
    shapes: Sequence[tuple[int, int]],
    *,
    table_of_feature: Sequence[int],
    pooling: PoolingType,
    optimizer: SparseOptimizer,
    device: torch.device,
    location: EmbeddingLocation = EmbeddingLocation.DEVICE,
    row_type: torch.dtype = torch.float32,
    checked: bool = True,
    **cache_options: Any,  # noqa: ANN401 - passed to fbgemm as they are
) -> TBE:
    """A TBE of tables `(rows, dim)` whose update is fused into backward.

    Rows are kept in `row_type`, fp32 or fp16; pooled outputs and optimizer state are fp32 either way, and
    an updated row of 16 bits is rounded to nearest. (On a CPU SGD and Adagrad also round the step to fp16 before they
    subtract it, row-wise Adagrad does not.) A HOST TBE looks up on the CPU even if the device is CUDA; on a CPU every
    TBE is HOST, whatever `location` says. Ids out of range raise an error, where fbgemm's default replaces them by 0;
    unless `checked`, they must not occur.

    Raises:
        ValueError: features of one table are not adjacent. fbgemm's CPU kernels treat each run of them as a table of
            its own and update a row once per run, where a CUDA device sums the gradients first.
    """
    if len([table for table, _ in groupby(table_of_feature)]) > len(set(table_of_feature)):
        raise ValueError(f"the features of each table must stand together, not in the order {list(table_of_feature)}")
    on_cpu = device.type == "cpu" or location is EmbeddingLocation.HOST
    where = EmbeddingLocation.HOST if on_cpu else location
    compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    tbe = TBE(
        embedding_specs=[(rows, dim, where, compute) for rows, dim in shapes],
        feature_table_map=list(table_of_feature),
        pooling_mode=pooling_type_to_pooling_mode(pooling),
        device=torch.device("cpu") if on_cpu else device,
        weights_precision=SparseType.from_dtype(row_type),
        output_dtype=SparseType.FP32,
        bounds_check_mode=BoundsCheckMode.FATAL if checked else BoundsCheckMode.NONE,
        stochastic_rounding=False,
        **optimizer_options(optimizer),
        **({} if on_cpu else cache_options),
    )
    if any(rows == 0 for rows, _ in shapes):
        # fbgemm's CPU kernels treat tables that start at the same row number as features of one table
        number_rows(tbe, [max(1, rows) for rows, _ in shapes])
    return count_updates_alone(tbe)


def number_rows(tbe: TBE, sizes: Sequence[int]) -> None:
    """Set the row numbers by which a TBE's backward sorts to those of concatenated tables of these sizes."""
    starts = list(accumulate(sizes, initial=0))
    tbe.hash_size_cumsum.copy_(torch.tensor([*(starts[t] for t in tbe.feature_table_map), starts[-1]]))
    tbe.total_hash_size = starts[-1]
    tbe.total_hash_size_bits = starts[-1].bit_length()


def build_shared_tbe(rows: int, dim: int, *, table_of_feature: Sequence[int], **options: Any) -> TBE:  # noqa: ANN401
    """A TBE whose tables share the same `rows` rows. A batch must not use a row through two of its tables.

    fbgemm's kernels work table by table, so this computes the same as separate tables, in the same order and as fast; a
    single table for all features is slower and, except with SGD, sums in another order. Row `i` of table `t` is at
    `weights_offsets[t] + i * dim` and sorted as `hash_size_cumsum[t] + i`. Read and write the rows through the first
    table. `options` are those of `build_tbe`.
    """
    tables = max(table_of_feature) + 1
    tbe = build_tbe([(rows, dim), *[(1, dim)] * (tables - 1)], table_of_feature=table_of_feature, **options)
    for prefix in ("weights", "momentum1", "momentum2"):
        if hasattr(tbe, f"{prefix}_offsets"):
            getattr(tbe, f"{prefix}_offsets").zero_()
    tbe.rows_per_table.fill_(rows)
    number_rows(tbe, [rows] * tables)
    return tbe


def count_updates_alone(tbe: TBE) -> TBE:
    """Make a TBE count updates only: fbgemm counts every forward, and Adam's bias correction uses the count."""
    if tbe.optimizer in (EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.ADAM):  # fbgemm counts for these only
        tbe.register_forward_hook(_take_back_count)
    return tbe


def _take_back_count(tbe: TBE, _inputs: object, _pooled: object) -> None:
    if not torch.is_grad_enabled():
        tbe.iter_cpu.sub_(1)
        tbe.iter.sub_(1)


def optimizer_options(optimizer: SparseOptimizer) -> dict[str, Any]:
    """TBE arguments of an optimizer, every hyper-parameter explicit."""
    options: dict[str, Any] = {
        "optimizer": OPTIMIZERS[optimizer.kind],
        "learning_rate": optimizer.lr,
        "eps": optimizer.eps,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "weight_decay": optimizer.weight_decay,
    }
    if optimizer.weight_decay:
        options["weight_decay_mode"] = WeightDecayMode.L2  # only row-wise Adagrad reads it
    if optimizer.max_gradient < math.inf:
        options |= {"gradient_clipping": True, "max_gradient": optimizer.max_gradient}
    return options


def load_tbe_rows(tbe: TBE, *, table: int, start: int, rows: Rows) -> None:
    """Overwrite rows from `start` on; the TBE's cache is emptied first, or it would serve stale rows.

    Raises:
        RuntimeError: a batch was prefetched and not looked up; its cached rows cannot be overwritten.
    """
    if tbe.timesteps_prefetched:
        raise RuntimeError("rows cannot be loaded while an announced batch waits to be looked up")
    flush_tbe(tbe)
    tbe.reset_cache_states()
    stop = start + rows.weights.shape[0]
    tbe.split_embedding_weights()[table][start:stop].copy_(rows.weights)
    for name, state in tbe_states(tbe, table).items():
        state[start:stop] = rows.state.get(name, 0.0)


def flush_tbe(tbe: TBE) -> None:
    """Write cached rows back; the current stream waits for a running prefetch first. The cache stays valid."""
    if tbe.prefetch_stream is not None:
        torch.cuda.current_stream().wait_stream(tbe.prefetch_stream)
    tbe.flush()


def read_tbe_rows(tbe: TBE, *, table: int, ids: Tensor) -> Rows:
    """Copies of rows on the host, written back from the cache first."""
    flush_tbe(tbe)
    state = {name: _pick(state, ids) for name, state in tbe_states(tbe, table).items()}
    return Rows(_pick(tbe.split_embedding_weights()[table], ids), state)


def tbe_states(tbe: TBE, table: int) -> dict[str, Tensor]:
    """Live optimizer state of a table by name."""
    states: list[dict[str, Tensor]] = tbe.get_optimizer_state()  # SGD has none
    return states[table] if states else {}


def tbe_steps(tbe: TBE) -> int:
    """Number of updates, as Adam counts them."""
    return int(tbe.iter_cpu)


def set_tbe_steps(tbe: TBE, steps: int) -> None:
    """Set Adam's count of updates to `steps`; fbgemm computes with one of its two counters and saves the other."""
    tbe.iter_cpu.fill_(steps)
    tbe.iter.fill_(steps)


def tbe_anatomy(tbes: Iterable[TBE], *, host_rows_are: Tier) -> MemoryBreakdown:
    """Bytes of live TBEs by tier and purpose; `host_rows_are` is the tier of HOST tensors."""
    found: list[tuple[Tier, MemoryUse, object]] = []
    for tbe in tbes:
        for suffix, tier in (("dev", Tier.DEVICE), ("uvm", Tier.HOST), ("host", host_rows_are)):
            found.append((tier, MemoryUse.ROWS, getattr(tbe, f"weights_{suffix}")))
            found += [(tier, MemoryUse.STATE, getattr(tbe, f"momentum{n}_{suffix}", None)) for n in (1, 2)]
        found.append((Tier.DEVICE, MemoryUse.ROWS, tbe.lxu_cache_weights))
        if tbe.lxu_cache_weights.numel():
            index = ("lxu_cache_state", "lxu_state", "lxu_cache_locking_counter", "cache_index_table_map")
            found += [(Tier.DEVICE, MemoryUse.INDEX, getattr(tbe, name)) for name in index]
    return total_of(
        {(tier, purpose): tensor.nbytes}
        for tier, purpose, tensor in found
        if isinstance(tensor, Tensor) and tensor.numel() > 1
    )


def _pick(rows: Tensor, ids: Tensor) -> Tensor:
    """fp32 copies on the host, in chunks: the device reads UVM, and may not have room for a whole table."""
    picked = torch.empty((ids.numel(), *rows.shape[1:]), dtype=torch.float32)
    for start in range(0, ids.numel(), _PICKED_ROWS):
        stop = start + _PICKED_ROWS
        picked[start:stop] = rows.index_select(0, ids[start:stop].to(rows.device))
    return picked
