"""What every published table is made of, before it becomes Markdown, CSV, LaTeX, a terminal's text or a page.

A sheet is made once and shown in many formats, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pandas as pd

from suite.records.groups import Group
from suite.records.published import PublishedRow, published_rows
from suite.records.record import Record
from suite.tables.rows import merged_rows, one_line, records_of

_Row = TypeVar("_Row")


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a column.

    Attributes:
        words: Words between which a narrow terminal may break.
        text: The column holds text, set flush left.
        breaks, repeats: A terminal too narrow for all columns starts a new table before it; each new one has it, too.
    """

    words: str
    text: bool = False
    breaks: bool = False
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Column(Head, Generic[_Row]):
    """A column and how it shows a row: as people read it; `n/a` where there is no value."""

    show: Callable[[_Row], str]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a block: cells as people read them, and the keys of the records behind it."""

    cells: tuple[str, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Sentences about the rows of a block under a title of their own."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A table of one setting and machine.

    Attributes:
        heading: What tells it from the others; empty where it belongs to the block before it, or is the only one.
        verdict: What follows from the rows, a sentence each.
        facts: What holds for the whole block, a sentence each.
        notes: What a reader has to know beside the numbers.
    """

    heading: str
    verdict: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    notes: tuple[Notes, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A published table: `title` is what it answers, `frame` has the same rows as raw numbers in SI units."""

    name: str
    title: str
    legend: tuple[str, ...]
    blocks: tuple[Block, ...]
    frame: pd.DataFrame


def lines(columns: Sequence[Column[_Row]], rows: Iterable[tuple[_Row, Sequence[str]]]) -> tuple[Line, ...]:
    """A line per row, from rows with the keys of the records behind them."""
    return tuple(Line(cells=tuple(column.show(row) for column in columns), keys=tuple(keys)) for row, keys in rows)


def notes(sentences: Iterable[str], title: str = "Notes") -> tuple[Notes, ...]:
    """Sentences under a title; nothing where there are none."""
    found = tuple(sentences)
    return (Notes(title=title, sentences=found),) if found else ()


SETTING_COLUMNS = (
    *("kind", "workload", "data", "scale", "device", "host", "threads", "optimizer", "lr", "eps", "batch_size"),
    *("embedding_dim", "max_rows", "cache_ratio", "device_budget_bytes", "seed", "setting", "source"),
)
"""What a line begins with."""


def frame(*groups: Group, published: bool = False) -> pd.DataFrame:
    """The comparison: a line per system and group, and where asked for the published rows of their workloads.

    Memory, printed in GB by a source that means GiB (see `suite.records.published.NOTE`), is converted to bytes.
    """
    lines = [
        setting_numbers(group, records_of(group, row))
        | {name: value for name, value in vars(row).items() if name != "notes"}
        | {"status": row.status.value, "reason": one_line(row.reason)}
        for group in groups
        for row in merged_rows(group)
    ]
    if published:
        workloads = dict.fromkeys(group.cell.workload for group in groups)
        lines += [
            _published_setting(row) | published_numbers(row) for name in workloads for row in published_rows(name)
        ]
    return raw_frame(lines)


def raw_frame(lines: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Rows of raw numbers in SI units: the setting, a sheet's own columns, then the keys of the records.

    Bytes stay whole where some are missing. Tables of other contests have no column for a host budget.
    """
    named = dict.fromkeys(name for line in lines for name in line)
    drives = ["host_budget_bytes"] if "host_budget_bytes" in named else []
    own = [name for name in named if name not in {*SETTING_COLUMNS, *drives, "records"}]
    return pd.DataFrame(list(lines), columns=[*SETTING_COLUMNS, *drives, *own, "records"]).convert_dtypes()


def setting_numbers(group: Group, runs: Sequence[Record]) -> dict[str, object]:
    """What every line begins with, and the keys of the records behind it."""
    cell, environment = group.cell, group.environment
    return {
        **{name: getattr(cell, name) for name in SETTING_COLUMNS if hasattr(cell, name)},
        "kind": "measured",
        "device": group.key.device,
        "host": environment.cpu,
        "threads": environment.threads,
        **({} if cell.host_budget_bytes is None else {"host_budget_bytes": cell.host_budget_bytes}),
        "records": " ".join(run.key for run in runs),
    }


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
