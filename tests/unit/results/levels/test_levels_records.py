"""What docs/disk.md says of a run with three levels on a drive is what its records say."""

from pathlib import Path

from suite.records.groups import group_records
from suite.records.record import Status
from suite.records.store import RecordStore
from suite.tables.disk import Step, rows_on_drive

ROOT = Path(__file__).resolve().parents[4]
THREE, TWO = "freq_cache[look_ahead=4,tier=file]", "freq_cache[levels=2,look_ahead=4,tier=file]"


def test_the_page_says_what_three_levels_read_and_how_fast_they_are() -> None:
    records, problems = RecordStore(ROOT / "results" / "levels").load_all()
    assert not problems
    assert {record.status for record in records} == {Status.OK}
    assert {(record.environment.dirty, record.environment.commit) for record in records} == {
        (False, records[0].environment.commit)
    }
    whole, alone = ({line["system"]: line for line in rows_on_drive(group_records(records), step)} for step in Step)
    page = " ".join((ROOT / "docs" / "disk.md").read_text().split())
    reads = [whole[name]["rows_read"] for name in (THREE, TWO)]
    assert reads[0] <= 1.15 * reads[1]
    assert f"{reads[0]:.2f} rows per sample with three levels and {reads[1]:.2f} with two" in page
    for step in (whole, alone):
        said = " and ".join(
            f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in (step[name]["ratio"] for name in (THREE, TWO))
        )
        assert said in page
