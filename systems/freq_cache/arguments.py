"""The arguments of a collection: refused where they do not go together, else turned into a `SystemSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.contract import Budget, CacheRatio, DeviceBytes, HostBytes, SparseOptimizer, SystemSpec, row_type_of
from systems.freq_cache import sizing
from systems.freq_cache.planner.policy import Policy

POLICIES = ("static", "lfu", "lru")
MOST_LOOK_AHEAD = 64


def specification(
    tables: Sequence[EmbeddingBagConfig],
    *,
    optimizer: SparseOptimizer,
    cache_ratio: float | None,
    device_bytes: int | None,
    host_bytes: int | None,
    policy: str | Callable[[int], Policy],
    look_ahead: int,
    frequencies: Mapping[str, Tensor] | None,
    is_weighted: bool,
    device: torch.device | str,
    batch_lookups: int,
    directory: Path | str | None,
    pinned: bool,
    slow_rows: str,
    seed: int | None,
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
    if seed is not None and not 0 <= seed < 1 << 64:
        raise ValueError(f"seed {seed} is outside 0 to 2**64 - 1")
    if not 0 <= look_ahead <= MOST_LOOK_AHEAD:
        raise ValueError(f"look_ahead of {look_ahead} is outside 0 to {MOST_LOOK_AHEAD}")
    if pinned and directory is not None:
        raise ValueError("rows in a directory are not in host memory: give directory or pinned, not both")
    if slow_rows not in sizing.SLOW_ROWS:
        raise ValueError(f"slow_rows '{slow_rows}' is none of {', '.join(sizing.SLOW_ROWS)}")
    if isinstance(policy, str) and policy not in POLICIES:
        raise ValueError(f"policy '{policy}' is none of {', '.join(POLICIES)}")
    return SystemSpec(
        tables=tuple(tables),
        optimizer=optimizer,
        device=torch.device(device),
        budget=budgets[0],
        batch_lookups=batch_lookups,
        frequencies=frequencies,
        weighted=is_weighted,
        parameters={
            "policy": policy if isinstance(policy, str) else "own",
            "look_ahead": str(look_ahead),
            "tier": "pinned" if pinned else "host" if directory is None else "file",
            "slow_rows": slow_rows,
        },
    )


def refused(spec: SystemSpec) -> str:
    """Why no cache can be built from a spec, in words; empty: it can."""
    half = [table.name for table in spec.tables if row_type_of(table) is not torch.float32]
    if spec.parameters["policy"] == "static" and spec.frequencies is None:
        return "policy=static ranks rows by id frequencies: give them, or use policy=lfu"
    if spec.parameters["tier"] == "pinned" and spec.device.type == "cpu":
        return "pinned rows are for a GPU, which reads them by itself: leave them pageable, which is tier=host"
    if isinstance(spec.budget, HostBytes) and (spec.parameters["tier"] != "file" or spec.device.type != "cpu"):
        return "a host budget is for rows on a drive that a CPU trains: keep them in a directory, which is tier=file"
    if half and sizing.ROW_ERROR[spec.parameters["slow_rows"]]:
        return f"slow_rows compresses rows of fp32: leave it at fp32, or change the data_type of {', '.join(half)}"
    return ""


def check_own_rows(cache_rows: Mapping[str, int], spec: SystemSpec) -> None:
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


def check_frequencies(frequencies: Mapping[str, Tensor], tables: Sequence[EmbeddingBagConfig]) -> None:
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


def check_first_rows(tables: Sequence[EmbeddingBagConfig]) -> None:
    """Refuse tables whose rows cannot be made one by one."""
    for table in tables:
        made = table.init_fn
        if made is not None and getattr(made, "func", None) is not torch.nn.init.uniform_:
            raise ValueError(
                f"table {table.name} has an init_fn, which fills a whole table where rows here are made one by one: "
                "use weight_init_min and weight_init_max, or load rows with load_rows or load_state_dict"
            )
