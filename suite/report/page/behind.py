"""The records behind the page's numbers, as the page carries them for its script."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from suite.records.environment import Environment
from suite.records.groups import Group
from suite.records.record import Record
from suite.records.status import Status
from suite.report.page.statements import device_words
from suite.report.source import Source
from suite.tables.columns import COLUMNS
from suite.tables.quantities import MISSING, amount, gigabytes
from suite.tables.rows import Row, merged_rows
from suite.tables.statistics import trusted_baseline

SPEED = "samples/s"
"""The value behind a number whose column no record has."""


def key_of(record: Record, row: Row) -> str:
    """What a record behind a row is carried under: the baseline's twice, as that of its second copy too."""
    return f"{record.key}/again" if row.again else record.key


def page_records(source: Source, root: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Every record as the page carries it, by `key_of`, and the environments that they name by position.

    A record has a text for each of `suite.tables.columns.COLUMNS`, then its samples/s. Links to files start from
    `root`.
    """
    made: dict[str, dict[str, Any]] = {}
    environments: dict[str, int] = {}
    for group in source.groups:
        rows = merged_rows(group)
        # A system that once gave a wrong answer has no number worth printing, of whatever round.
        withheld = {row.system for row in rows if row.status is Status.WRONG_ANSWER}
        trust = trusted_baseline(group.rounds_by_system.values()) is not None
        for number in sorted({record.cell.round for record in group.records}):
            # As merged as a row of the table is, but of one round alone
            of_round = Group(group.key, tuple(r for r in group.records if r.cell.round == number))
            for row in (replace(row, noise=rows[0].noise) for row in merged_rows(of_round, trust=trust)):
                (record,) = row.records
                shown = record.cell.system not in withheld
                texts = [column.show(row) if shown or column.text else MISSING for column in COLUMNS]
                texts.append(amount(row.samples_per_s if shown else None))
                where = environments.setdefault(_environment_words(record.environment, group), len(environments))
                made[key_of(record, row)] = _record(record, texts, where=where, file=_link(source, record, root))
    return made, list(environments)


def _record(record: Record, texts: list[str], *, where: int, file: str | None) -> dict[str, Any]:
    environment, checks = record.environment, record.verification.checks if record.verification else ()
    passed = sum(check.passed for check in checks)
    commit = environment.commit[:10] + (", changed" if environment.dirty else "") if environment.commit else MISSING
    return {
        "system": record.cell.system,
        "round": record.cell.round + 1,
        "status": record.status.value,
        "checks": f"{passed} of {len(checks)} checks passed" if checks else "not verified",
        "started": record.started_at,
        "commit": commit,
        "code": environment.code,
        "environment": where,
        "file": file,
        "values": texts,
    }


def _link(source: Source, record: Record, root: Path) -> str | None:
    file = source.files.get(record.key)
    return None if file is None else quote(Path(os.path.relpath(file, root)).as_posix())


def _environment_words(environment: Environment, group: Group) -> str:
    memory = f"{gigabytes(environment.memory_bytes)} GB of memory"
    parts = [device_words(group), f"{environment.threads} threads", memory]
    if not group.on_cpu and environment.driver:
        parts.append(f"driver {environment.driver}")
    packages = [f"{name} {version}" for name, version in sorted(environment.packages.items())]
    return ", ".join([*parts, environment.os, f"Python {environment.python}", *packages])
