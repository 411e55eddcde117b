"""Reading raw text into typed columns, beside polars' bare `read_csv` of the same file: fields as strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from turns import Side, Turns

from tests.raw_files import write_raw
from workloads.prepare.formats import FORMATS, RawFormat
from workloads.prepare.lines import RawFile
from workloads.prepare.text import RowChecks, TextRows

DATASETS = ("criteo_kaggle", "avazu")
ROWS = {True: 60_000, False: 300}
ROUNDS = 15
BLOCK_BYTES = 64 << 20
"""More than a file has: one block, as `read_csv` reads it."""


@dataclass(frozen=True)
class Text:
    """A raw file and the two ways of reading it. Neither keeps anything from one round to the next."""

    raw: RawFormat
    path: Path
    rows: int

    def parse(self) -> pl.DataFrame:
        """Checked and typed rows, as preparation takes them."""
        rows = TextRows(self.raw, RawFile(self.path), RowChecks(self.path, allowed=0))
        return pl.concat(rows.frames(BLOCK_BYTES))

    def read_csv(self) -> pl.DataFrame:
        """What stands between separators."""
        return pl.read_csv(
            self.path,
            has_header=self.raw.header,
            separator=self.raw.separator,
            quote_char=None,
            schema={column.name: pl.String for column in self.raw.columns},
        )

    def side(self, name: str, run: Callable[[], pl.DataFrame]) -> Side:
        return Side(
            name=f"{name}[{self.raw.name}]",
            unit="rows",
            units=self.rows,
            prepare=tuple,
            run=run,
            threads=pl.thread_pool_size(),
        )


@pytest.fixture(scope="module", params=DATASETS)
def text(request: pytest.FixtureRequest, full_size: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Text]:
    raw, rows = FORMATS[request.param], ROWS[full_size]
    path = tmp_path_factory.mktemp("reader") / request.param
    write_raw(raw, path, rows, seed=0, packed=False)
    yield Text(raw, path, rows)
    path.unlink()


@pytest.mark.benchmark(group="reader")
def test_parse(turns: Turns, text: Text) -> None:
    parsed, strings = turns.measure(
        text.side("test_parse", text.parse), beside=text.side("test_read_csv", text.read_csv), rounds=ROUNDS
    )
    assert parsed.height == strings.height == text.rows
    assert parsed.columns == [column.name for column in text.raw.used]
    assert parsed[text.raw.label.name].to_list() == [int(label) for label in strings[text.raw.label.name]]
    hexadecimal = next(column for column in text.raw.categorical if column.kind == "categorical_hex").name
    words = strings[hexadecimal].to_list()
    assert parsed[hexadecimal].to_list() == [int(word, 16) if word else None for word in words]
