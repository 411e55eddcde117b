"""The comparison as Markdown and CSV, from records already read, beside `json.loads` of the same records."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pandas as pd
import pytest
from turns import Side, Turns

from suite.records.groups import group_records
from suite.records.record import Record
from suite.tables.comparison import comparison
from suite.tables.sheet import to_csv, to_markdown
from tests.unit.suite.fabricate import rounds, shuffled

WORKLOADS = ("criteo_kaggle", "avazu", "criteo_1tb")
SYSTEMS = ("full_gpu", "torchrec_uvm", *(f"cache[policy=p{number}]" for number in range(18)))
ROUNDS_OF_SYSTEM = {True: 5, False: 2}
ROUNDS = 20


@pytest.fixture(scope="module")
def records(full_size: bool) -> list[Record]:
    """Of three comparisons of twenty systems each, in no order."""
    speeds = [800_000 + 1_000 * number for number in range(ROUNDS_OF_SYSTEM[full_size])]
    made = [
        one
        for workload in WORKLOADS
        for at, system in enumerate(SYSTEMS)
        for one in rounds(system, [speed + at for speed in speeds], setting={"workload": workload})
    ]
    return shuffled(made)


def tables_of(records: list[Record]) -> tuple[str, str]:
    sheet = comparison(group_records(records))
    return to_markdown(sheet), to_csv(sheet)


@pytest.mark.benchmark(group="report")
def test_tables(turns: Turns, records: list[Record]) -> None:
    texts = [json.dumps(one.model_dump(mode="json"), indent=2) for one in records]

    def side(name: str, run: Callable[[], object]) -> Side:
        return Side(name=name, unit="records", units=len(records), prepare=tuple, run=run, threads=1)

    loads = side("test_loads", lambda: [json.loads(text) for text in texts])
    ours = side("test_tables", lambda: tables_of(records))
    (markdown, csv), read = turns.measure(ours, beside=loads, rounds=ROUNDS)
    assert markdown.count("| torchrec_uvm |") == 2 * len(WORKLOADS)  # main columns, and the rest
    frame = pd.read_csv(io.StringIO(csv))
    assert set(SYSTEMS) <= set(frame["system"])
    assert [Record.model_validate(content) for content in read] == records
