"""The arguments of a collection: refused where they do not go together, else turned into a `SystemSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.contract import Budget, CacheRatio, DeviceBytes, HostBytes, SparseOptimizer, SystemSpec, row_type_of
from systems.freq_cache import sizing
from systems.freq_cache.collection.optimizers import sparse_optimizer
from systems.freq_cache.initial_rows import check_first_rows
from systems.freq_cache.planner.policy import Policy

POLICIES = ("static", "lfu", "lrfu", "lru")
EXCHANGES = ("staged", "device")
MOST_LOOK_AHEAD = 64
_LOOK_AHEAD_ON_CUDA = 4


def specification(
    tables: Sequence[EmbeddingBagConfig],
    *,
    optimizer: SparseOptimizer | type[torch.optim.Optimizer],
    optimizer_kwargs: Mapping[str, Any],
    table_kwargs: Mapping[str, Mapping[str, Any]],
    cache_ratio: float | None,
    device_bytes: int | None,
    host_bytes: int | None,
    policy: str | Callable[[int], Policy],
    look_ahead: int,
    lookups_per_backward: int,
    frequencies: Mapping[str, Tensor] | None,
    is_weighted: bool,
    device: torch.device | str,
    batch_lookups: int,
    directory: Path | str | None,
    pinned: bool,
    exchange: str,
    slow_rows: str,
) -> SystemSpec:
    """The arguments of a `CachedEmbeddingBagCollection` as a system's.

    Raises:
        ValueError: they do not go together; the message says what to change.
    """
    budgets: list[Budget] = [
        *([CacheRatio(ratio=cache_ratio)] if cache_ratio is not None else []),
        *([DeviceBytes(total_bytes=device_bytes)] if device_bytes is not None else []),
        *([HostBytes(total_bytes=host_bytes)] if host_bytes is not None else []),
    ]
    if len(budgets) != 1:
        raise ValueError("give cache_ratio, device_bytes or host_bytes, one of them")
    if not 0 <= look_ahead <= MOST_LOOK_AHEAD:
        raise ValueError(f"look_ahead of {look_ahead} is outside 0 to {MOST_LOOK_AHEAD}")
    if lookups_per_backward < 1:
        raise ValueError(f"lookups_per_backward of {lookups_per_backward} is less than 1")
    if torch.device(device).type == "meta":
        raise ValueError(
            "rows are no parameters that another device could take over later: give the device that looks them up, "
            "also where the model around is built on meta"
        )
    if unknown := sorted(set(table_kwargs) - {table.name for table in tables}):
        raise ValueError(f"table_kwargs names no table of the collection: {', '.join(unknown)}")
    if pinned and directory is not None:
        raise ValueError("rows in a directory are not in host memory: give directory or pinned, not both")
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange '{exchange}' is none of {', '.join(EXCHANGES)}")
    if slow_rows not in sizing.SLOW_ROWS:
        raise ValueError(f"slow_rows '{slow_rows}' is none of {', '.join(sizing.SLOW_ROWS)}")
    if isinstance(policy, str) and policy not in POLICIES:
        raise ValueError(f"policy '{policy}' is none of {', '.join(POLICIES)}")
    return SystemSpec(
        tables=tuple(map(_named, tables)),
        optimizer=sparse_optimizer(optimizer, optimizer_kwargs),
        table_optimizers={
            name: sparse_optimizer(optimizer, {**optimizer_kwargs, **own}) for name, own in table_kwargs.items()
        },
        device=torch.device(device),
        budget=budgets[0],
        batch_lookups=batch_lookups,
        frequencies=frequencies,
        weighted=is_weighted,
        parameters={
            "policy": policy if isinstance(policy, str) else "own",
            "look_ahead": str(look_ahead),
            "lookups_per_backward": str(lookups_per_backward),
            "tier": "pinned" if pinned else "host" if directory is None else "file",
            "exchange": exchange,
            "slow_rows": slow_rows,
        },
    )


def _named(table: EmbeddingBagConfig) -> EmbeddingBagConfig:
    """A table that serves no feature serves the one of its name, as torchrec has it."""
    return table if table.feature_names else replace(table, feature_names=[table.name])


def usual_look_ahead(device: torch.device | str) -> int:
    """Enough that planning and copying go on beside training; on a CPU they would take its time."""
    return _LOOK_AHEAD_ON_CUDA if torch.device(device).type == "cuda" else 0


def refused(spec: SystemSpec) -> str:
    """Why no cache can be built from a spec, in words; empty: it can."""
    half = [table.name for table in spec.tables if row_type_of(table) is not torch.float32]
    brain = [table.name for table in spec.tables if row_type_of(table) is torch.bfloat16]
    if brain and spec.device.type == "cpu":
        return f"fbgemm has no rows of bf16 on a CPU: change the data_type of {', '.join(brain)}"
    if spec.parameters["policy"] == "static" and spec.frequencies is None:
        return "policy=static ranks rows by id frequencies: give them, or use policy=lfu"
    if refusal := _refused_tier(spec):
        return refusal
    if spec.device.type == "cpu" and any(spec.optimizer_of(table).weight_decay for table in spec.tables):
        return "fbgemm decays no rows on a CPU: leave weight_decay at 0"
    if half and sizing.ROW_ERROR[spec.parameters["slow_rows"]]:
        return f"slow_rows compresses rows of fp32: leave it at fp32, or change the data_type of {', '.join(half)}"
    return ""


def _refused_tier(spec: SystemSpec) -> str:
    on_cpu, tier, exchange = spec.device.type == "cpu", spec.parameters["tier"], spec.parameters.get("exchange")
    if tier == "pinned" and on_cpu:
        return "pinned rows are for a GPU, which reads them by itself: leave them pageable, which is tier=host"
    if exchange == "device" and tier != "pinned":
        return "exchange=device is for rows that the device sees: pin them, which is tier=pinned, or leave it at staged"
    if exchange == "device" and find_spec("triton") is None:
        return "exchange=device needs Triton, which comes with CUDA builds of torch: install it, or leave it at staged"
    if isinstance(spec.budget, HostBytes) and not (tier == "file" and on_cpu):
        return "a host budget is for rows on a drive that a CPU trains: keep them in a directory, which is tier=file"
    return ""


def check(spec: SystemSpec, cache_rows: Mapping[str, int], seed: int | None) -> None:
    """Refuse what goes with a system and not with a collection that has these slots of single tables, and this seed.

    Raises:
        ValueError: the message says what to change.
    """
    _check_own_rows(cache_rows, spec)
    if spec.parameters["policy"] == "static":
        _check_frequencies(spec.frequencies or {}, spec.tables)
    check_first_rows(spec.tables, seed)


def _check_own_rows(cache_rows: Mapping[str, int], spec: SystemSpec) -> None:
    """Refuse slots for tables that are not there, none at all, or more than a budget has room for."""
    unknown = sorted(set(cache_rows) - {table.name for table in spec.tables})
    if unknown:
        raise ValueError(f"cache_rows names no table of the collection: {', '.join(unknown)}")
    empty = sorted(name for name, rows in cache_rows.items() if rows < 1)
    if empty:
        raise ValueError(f"cache_rows must be at least 1: {', '.join(empty)}")
    needed = sizing.least_bytes(spec, cache_rows)
    if isinstance(spec.budget, DeviceBytes) and needed > spec.budget.total_bytes:
        raise ValueError(
            f"a device budget of {spec.budget.total_bytes:,} bytes has no room for cache_rows: the smallest that "
            f"works is {needed:,} bytes"
        )


def _check_frequencies(frequencies: Mapping[str, Tensor], tables: Sequence[EmbeddingBagConfig]) -> None:
    """Refuse what policy `static` cannot rank rows by."""
    for table in tables:
        found = frequencies.get(table.name)
        if found is None:
            raise ValueError(f"policy=static ranks rows by frequency: give frequencies of table {table.name}")
        if tuple(found.shape) != (table.num_embeddings,) or found.dtype != torch.int64:
            raise ValueError(
                f"frequencies of table {table.name} are {found.dtype} {list(found.shape)}: give int64 "
                f"[{table.num_embeddings}], the accesses of every row"
            )
        if found.numel() and int(found.min()) < 0:
            raise ValueError(f"frequencies count accesses: those of table {table.name} cannot be negative")
