"""The published sheets beside the comparison: what they show, of whom, and what they leave out."""

import csv
from pathlib import Path

import pytest

from suite.records.groups import group_records
from suite.records.record import Record, Status
from suite.report.publish import sheets
from suite.tables.sheet import Sheet
from tests.unit.suite.fabricate import (
    BASELINE,
    environment,
    gpu_run,
    optimum,
    record,
    rounds,
)
from tests.unit.suite.report.report_scenes import lines_of, only_table, unverified

ROOT = Path(__file__).resolve().parents[4]
NAMES = ["comparison", "paper"]


def made(records: list[Record]) -> dict[str, Sheet]:
    return {sheet.name: sheet for sheet in sheets(group_records(records))}


def line_of(sheet: Sheet, system: str, **cells: str) -> dict[str, str]:
    (line,) = [
        line
        for block in sheet.tables
        for line in lines_of(block)
        if line["system"] == system and all(line[name] == text for name, text in cells.items())
    ]
    return line


def row_of(sheet: Sheet, **values: object):
    found = sheet.frame
    for name, value in values.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


def test_sheets_come_in_reading_order_and_the_empty_ones_not_at_all():
    assert list(made(gpu_run())) == NAMES
    assert list(made([])) == ["comparison"]
    failed = [record("a", status=Status.CRASHED, reason="boom", phase="build")]
    assert list(made(failed)) == ["comparison", "paper"]


def test_machines_never_share_a_table_and_no_two_headings_are_the_same():
    where = (environment(), environment(machine="another"), environment(machine="a third", gpu="NVIDIA A100"))
    given = [run for here in where for run in rounds("a", [9e5, 9.1e5], where=here, least=optimum())]
    for sheet in made(given).values():
        assert len({block.heading for block in sheet.tables}) == len(sheet.tables) == 3


def test_paper_has_the_papers_columns_and_says_whose_each_row_is():
    sheet = made(rounds("full_gpu", [BASELINE] * 3, noise=0.001, offloads=False))["paper"]
    ours, colossal, _ = lines_of(only_table(sheet))
    assert [*ours] == [
        *("system", "AUROC", "accuracy", "it/s", "epoch time", "GPU GB allocated", "GPU GB reserved", "CPU GB"),
        *("row is", "hardware", "batch", "cache ratio or budget"),
    ]
    assert [ours[name] for name in ("row is", "hardware")] == ["measured", "NVIDIA H100 80GB HBM3"]
    assert (colossal["row is"], colossal["batch"]) == ("published", "16,384")
    assert colossal["hardware"] == "NVIDIA A100 80 GB; AMD EPYC 7543, 32 cores; 512 GB"
    assert set(sheet.frame["kind"]) == {"measured", "published"}
    assert row_of(sheet, system="full_gpu")["status"] == "ok"
    assert row_of(sheet, system="torchrec")["device_allocated_bytes"] == round(16.13 * 2**30)


@pytest.mark.parametrize("workload", ["criteo_kaggle", "avazu", "criteo_1tb"])
def test_published_rows_are_verbatim(workload):
    with (ROOT / "suite" / "records" / "published.csv").open(encoding="utf-8", newline="") as file:
        expected = [fields for fields in csv.DictReader(file) if fields["workload"] == workload]
    block = only_table(made([record("a", setting={"workload": workload})])["paper"])
    found = [line for line in lines_of(block) if line["row is"] == "published"]
    assert len(found) == len(expected) == 2
    columns = {
        "system": "system",
        "AUROC": "auroc",
        "accuracy": "accuracy",
        "it/s": "steps_per_s",
        "GPU GB allocated": "gpu_allocated_gb",
        "GPU GB reserved": "gpu_reserved_gb",
        "CPU GB": "cpu_gb",
    }
    for line, fields in zip(found, expected, strict=True):
        assert {head: line[head] for head in columns} == {head: fields[name] for head, name in columns.items()}
    times = {"49": "49s", "30": "30s", "31": "31s", "21": "21s", "6000": "1h40m", "5700": "1h35m"}
    assert [line["epoch time"] for line in found] == [times[fields["epoch_s"]] for fields in expected]


def test_paper_shows_what_failed_and_what_was_not_verified():
    sheet = made([*unverified([record("bare")]), *gpu_run()[-3:]])["paper"]
    assert line_of(sheet, "bare")["row is"] == "measured, not verified"
    failed = line_of(sheet, "reference")
    assert (failed["row is"], failed["AUROC"], failed["it/s"]) == ("oom_device", "n/a", "n/a")
    assert "reference: oom_device in phase build: needs 17.3 GB, the device has 16 GB" in only_table(sheet).notes
