"""Records and simulations that the tests of the report share."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from suite.records.groups import group_records
from suite.records.record import Record, Verification
from suite.report.publish import Source
from suite.tables.sheet import ResultTable, Sheet
from tests.unit.suite import fabricate


def source(records: Iterable[Record], **more: Any) -> Source:
    return Source(groups=tuple(group_records(records)), **more)


def sweep(workload="criteo_kaggle", *, noise=0.02, device="cuda"):
    """A cache at two sizes that costs 20 and 10 %, a table on the host, and the baseline with an A/A ratio of 1.04."""
    records = []
    for ratio, speed in ((0.01, 0.8), (0.05, 0.9)):
        setting = {"workload": workload, "cache_ratio": ratio, "device": device}
        for name, share, anatomy in (
            ("full_gpu", 1.04, {"device/rows": 10 * fabricate.GB}),
            ("cache", speed, {"device/rows": int(ratio * fabricate.GB), "device/index": fabricate.GB // 1000}),
            ("torchrec_uvm", 0.5, {"host/rows": fabricate.GB}),
            ("no_embeddings", 2, {}),
        ):
            speeds = [share * fabricate.BASELINE] * 3
            records += fabricate.rounds(name, speeds, setting=setting, noise=noise, anatomy=anatomy)
    return records


def unverified(records: Iterable[Record]) -> list[Record]:
    return [old.model_copy(update={"verification": Verification(checks=())}) for old in records]


def lines_of(block: ResultTable) -> list[dict[str, str]]:
    """Cells of all tables of a block by the words of their column."""
    columns = [column for table in block.frames for column in table.columns]
    return [{column.words: column.cell(line) for column in columns} for line in block.lines]


def only_table(sheet: Sheet | None) -> ResultTable:
    assert sheet is not None
    (block,) = sheet.tables
    return block


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?=[^<>]*>)")
_NAME = re.compile(r"\b[a-z]{1,3}[0-9a-f]{10}\b")
"""Matplotlib's name of a part of a drawing: a digest of its coordinates."""


def alike(one: Path, other: Path) -> bool:
    """Whether two files say the same: to the letter, but for a hundredth of a point inside the tags of drawings.

    Processors of different makes round logarithms differently, which moves a line by a millionth of a point.
    """
    (words, places), (others, elsewhere) = (_apart(path.read_text(encoding="utf-8")) for path in (one, other))
    return words == others and places == pytest.approx(elsewhere, rel=0, abs=0.01)


def _apart(text: str) -> tuple[str, list[float]]:
    """A text without the numbers in tags of drawings, and those numbers."""
    places: list[float] = []

    def without(drawing: re.Match[str]) -> str:
        named = _NAME.sub("part", drawing[0])
        places.extend(map(float, _NUMBER.findall(named)))
        return _NUMBER.sub("#", named)

    return re.sub(r"<svg\b.*?</svg>", without, text, flags=re.DOTALL), places
