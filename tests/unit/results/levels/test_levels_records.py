"""What docs/disk.md says of rows on a drive is what its records say."""

import re
from pathlib import Path

import pytest

from suite.records.groups import group_records
from suite.records.record import Status
from suite.records.store import RecordStore
from suite.tables.disk import Step, rows_on_drive

ROOT = Path(__file__).resolve().parents[4]
THREE, TWO = "freq_cache[look_ahead=4,tier=file]", "freq_cache[levels=2,look_ahead=4,tier=file]"
PAGE = (ROOT / "docs" / "disk.md").read_text()


@pytest.mark.parametrize("folder", ["disk", "levels"])
def test_every_row_of_the_page_is_that_of_the_records(folder: str) -> None:
    records, problems = RecordStore(ROOT / "results" / folder).load_all()
    assert not problems
    assert {record.status for record in records} == {Status.OK}
    whole, alone = ({line["system"]: line for line in rows_on_drive(group_records(records), step)} for step in Step)
    for name in whole.keys() - {"full_ram"}:
        line = whole[name]
        ratios = (one["ratio"] for one in (line, alone[name]))
        said = " | ".join(f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in ratios)
        moved = f"{line['read_bytes'] / 1e3:.2f}, {line['written_bytes'] / 1e3:.2f}"
        row = rf"\| {line['budget'] >> 30} GiB \| `{re.escape(name)}`[^|]* \| " + re.escape(f"{said} | {moved} | ")
        assert re.search(rf"{row}{100 * line['held']:.1f} %", PAGE), name


def test_three_levels_read_about_as_much_and_train_as_fast_as_two() -> None:
    records, _ = RecordStore(ROOT / "results" / "levels").load_all()
    whole, alone = ({line["system"]: line for line in rows_on_drive(group_records(records), step)} for step in Step)
    reads = [whole[name]["rows_read"] for name in (THREE, TWO)]
    assert reads[0] <= 1.15 * reads[1]
    assert whole[THREE]["ratio"].value >= 0.95 * whole[TWO]["ratio"].value
    page = " ".join(PAGE.split())
    assert f"{reads[0]:.2f} rows per sample with three levels and {reads[1]:.2f} with two" in page
    for rival in ("mapped_table", "rocksdb_table"):
        over = alone[THREE][f"over_{rival}"]
        assert f"{over.value:.2f} [{over.low:.2f}, {over.high:.2f}] times" in page
