"""Tables as data frames: raw numbers in SI units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from suite.records.groups import Group
from suite.records.published import PublishedRow, published_rows
from suite.records.record import Record
from suite.tables.rows import Row, merged_rows, one_line, records_of

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


def frame(*groups: Group, published: bool = False) -> pd.DataFrame:
    """The comparison: a line per system and group.

    Args:
        groups: What to list.
        published: Also list the published rows of their workloads. Their memory, printed in GB by a source that means
            GiB (see `suite.records.published.NOTE`), is converted to bytes.
    """
    lines = [
        setting_numbers(group, records_of(group, row)) | _numbers(row) for group in groups for row in merged_rows(group)
    ]
    if published:
        workloads = dict.fromkeys(group.cell.workload for group in groups)
        lines += [
            _published_setting(row) | published_numbers(row) for name in workloads for row in published_rows(name)
        ]
    return raw_frame(lines, Row)


def raw_frame(lines: Sequence[Mapping[str, object]], kind: type[Any]) -> pd.DataFrame:
    """Rows of raw numbers in SI units: the setting, a sheet's own columns, then the keys of the records.

    Args:
        lines: Values by column; what is left out has no value.
        kind: The dataclass whose fields are the sheet's own columns. Their annotations give the pandas types, which
            keep bytes whole where some are missing.
    """
    # tables of other contests are as they were before there was a host budget
    drives = {"host_budget_bytes": "Int64"} if any("host_budget_bytes" in line for line in lines) else {}
    own = {field.name: _pandas_type(str(field.type)) for field in fields(kind) if "tuple" not in str(field.type)}
    types = {**SETTING_COLUMNS, **drives, **own, "records": "object"}
    return pd.DataFrame(list(lines), columns=list(types)).astype(types)


def _pandas_type(annotation: str) -> str:
    known = {"int": "Int64", "float": "Float64", "bool": "boolean"}
    return known.get(annotation.removesuffix(" | None"), "object")


def setting_numbers(group: Group, runs: Sequence[Record]) -> dict[str, object]:
    """What every line begins with, and the keys of the records behind it."""
    return setting_columns(group) | {"records": " ".join(run.key for run in runs)}


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
        **({} if cell.host_budget_bytes is None else {"host_budget_bytes": cell.host_budget_bytes}),
    }


def _numbers(row: Row) -> dict[str, object]:
    return vars(row) | {"status": row.status.value, "reason": one_line(row.reason)}


def _published_setting(row: PublishedRow) -> dict[str, object]:
    return {
        "kind": "published",
        "workload": row.workload,
        "data": "real",
        "device": row.gpu,
        "host": row.cpu,
        "batch_size": row.batch_size,
        "cache_ratio": row.cache_ratio,
        "source": row.source,
    }


def published_numbers(row: PublishedRow) -> dict[str, Any]:
    """A published row by the fields of `suite.tables.rows.Row`, in SI units."""
    return {
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
