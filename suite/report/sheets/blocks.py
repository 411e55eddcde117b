"""What the sheets have in common: what holds for a block, and rows of raw numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from suite.records.groups import Group
from suite.records.record import Measurement, Record
from suite.records.status import Status
from suite.tables.frames import SETTING_COLUMNS, setting_columns
from suite.tables.quantities import MISSING, amount, megabytes
from suite.tables.rows import Row, one_line
from suite.tables.sections import CPU_CAVEAT, budget, facts, failure, heading
from suite.tables.statistics import SpeedRatio


def headings(groups: Sequence[Group]) -> list[str]:
    """A heading per group."""
    return told_apart([f"{heading(group)}, {budget(group)}" for group in groups], map(distinction, groups))


def told_apart(plain: Sequence[str], distinctions: Iterable[str]) -> list[str]:
    """Headings; those that are the same for two, with what tells them apart."""
    counts = Counter(plain)
    return [text if counts[text] == 1 else f"{text} ({other})" for text, other in zip(plain, distinctions, strict=True)]


def distinction(group: Group) -> str:
    """What tells a group from all others, in digests."""
    key = group.key
    return f"setting {key.setting}, machine {key.machine}, {key.threads} threads"


def cache_size(ratio: float | None, budget_bytes: int | None = None) -> str:
    """How much of the tables a cell could hold on the device: a share of the rows, or bytes for all it keeps there."""
    if budget_bytes is not None:
        return f"{megabytes(budget_bytes)} MB"
    return MISSING if ratio is None else f"{100 * ratio:g} %"


def block_facts(group: Group) -> tuple[str, ...]:
    """What a group's table says of where and how it was measured."""
    found = [f"{label}: {text}" for label, text in facts(group)]
    return (*found, f"On a CPU: {CPU_CAVEAT}") if group.on_cpu else tuple(found)


def row_notes(row: Row) -> tuple[str, ...]:
    """What a reader has to know of a row beside its numbers, each with the system's name."""
    failed = (f"{row.system}: {failure(row)}",) if row.status is not Status.OK else ()
    return failed + tuple(f"{row.system}: {one_line(note)}" for note in row.notes)


def trusted(runs: Sequence[Record]) -> tuple[Measurement, ...]:
    """Measurements of a system's rounds; none where one of them gave a wrong answer."""
    if any(run.status is Status.WRONG_ANSWER for run in runs):
        return ()
    return tuple(run.measurement for run in runs if run.measurement is not None)


def record_keys(runs: Sequence[Record]) -> tuple[str, ...]:
    """Keys of the records that a row is made of."""
    return tuple(run.key for run in runs)


def relative(ratio: SpeedRatio | None) -> str:
    """A ratio of speeds with its interval."""
    if ratio is None:
        return MISSING
    interval = MISSING if ratio.low is None else f"{amount(ratio.low)}, {amount(ratio.high)}"
    return f"{amount(ratio.ratio)} [{interval}]"


def percent(value: float | None, decimals: int = 0) -> str:
    """A share in per cent."""
    return MISSING if value is None else f"{100 * value:.{decimals}f} %"


def count(value: int | None) -> str:
    """A whole number, every digit of it."""
    return MISSING if value is None else f"{value:,}"


def setting_numbers(group: Group, runs: Sequence[Record]) -> dict[str, object]:
    """The columns that every row of raw numbers begins with, and the records behind it."""
    return setting_columns(group) | {"records": " ".join(record_keys(runs))}


def raw_frame(lines: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Rows of raw numbers: the setting, the sheet's own columns, then the keys of the records.

    Args:
        lines: Values by column; what is left out has no value.
        columns: The sheet's own columns with their pandas types, which keep bytes whole where some are missing.
    """
    types = {**SETTING_COLUMNS, **columns, "records": "object"}
    return pd.DataFrame(list(lines), columns=list(types)).astype(types)
