"""Comparison groups as data frames: raw numbers in SI units, one line per system."""

from __future__ import annotations

from dataclasses import asdict, fields

import pandas as pd

from suite.records.groups import Group
from suite.records.published import PublishedRow, published_rows
from suite.tables.rows import Row, merged_rows, one_line

SETTING_COLUMNS = {
    "kind": "object",
    "workload": "object",
    "data": "object",
    "scale": "object",
    "device": "object",
    "host": "object",
    "threads": "Int64",
    "optimizer": "object",
    "lr": "Float64",
    "eps": "Float64",
    "batch_size": "Int64",
    "embedding_dim": "Int64",
    "max_rows": "Int64",
    "cache_ratio": "Float64",
    "device_budget_bytes": "Int64",
    "seed": "Int64",
    "setting": "object",
    "source": "object",
}


def _pandas_type(annotation: str) -> str:
    known = {"int": "Int64", "float": "Float64", "bool": "boolean"}
    return known.get(annotation.removesuffix(" | None"), "object")


_NUMBER_COLUMNS = {field.name: _pandas_type(str(field.type)) for field in fields(Row) if field.name != "notes"}


def frame(*groups: Group, published: bool = False) -> pd.DataFrame:
    """Raw numbers in SI units, one line per system and group.

    Args:
        groups: What to list.
        published: Also list the published rows of their workloads. Their memory, printed in GB by a source that means
            GiB (see `suite.records.published.NOTE`), is converted to bytes.
    """
    lines = [setting_columns(group) | _numbers(row) for group in groups for row in merged_rows(group)]
    if published:
        workloads = dict.fromkeys(group.cell.workload for group in groups)
        lines += [_published(row) for workload in workloads for row in published_rows(workload)]
    table = pd.DataFrame(lines, columns=list(SETTING_COLUMNS | _NUMBER_COLUMNS))
    # Without its own integer type a column with one missing value would turn all bytes into floats.
    return table.astype({**SETTING_COLUMNS, **_NUMBER_COLUMNS})


def setting_columns(group: Group) -> dict[str, object]:
    """What holds for every line of a group, by column."""
    cell, environment = group.cell, group.environment
    return {
        "kind": "measured",
        **{name: getattr(cell, name) for name in ("workload", "data", "scale", "optimizer", "lr", "eps", "batch_size")},
        **{name: getattr(cell, name) for name in ("embedding_dim", "max_rows", "cache_ratio", "device_budget_bytes")},
        "device": group.key.device,
        "host": environment.cpu,
        "threads": environment.threads,
        "seed": cell.seed,
        "setting": cell.setting,
    }


def _numbers(row: Row) -> dict[str, object]:
    return {name: value for name, value in asdict(row).items() if name in _NUMBER_COLUMNS} | {
        "status": row.status.value,
        "reason": one_line(row.reason),
    }


def _published(row: PublishedRow) -> dict[str, object]:
    return {
        "kind": "published",
        "workload": row.workload,
        "data": "real",
        "device": row.gpu,
        "host": row.cpu,
        "batch_size": row.batch_size,
        "cache_ratio": row.cache_ratio,
        "source": row.source,
        "system": row.system,
        "auroc": row.auroc,
        "accuracy": row.accuracy,
        "steps_per_s": row.steps_per_s,
        "samples_per_s": row.steps_per_s * row.batch_size,
        "epoch_s": row.epoch_s,
        "device_allocated_bytes": round(row.gpu_allocated_gb * 2**30),
        "device_reserved_bytes": round(row.gpu_reserved_gb * 2**30),
        "host_peak_rss_bytes": round(row.cpu_gb * 2**30),
        "status": "published",
    }
