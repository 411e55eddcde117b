"""Every published sheet but that of rows on a drive: what it shows, of whom, and what it leaves out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from suite.records.groups import group_records
from suite.records.record import Record, Status
from suite.report.sheets import sheets
from suite.tables.sheet import Sheet, to_csv, to_markdown
from tests.unit.suite.fabricate import (
    cpu_run,
    environment,
    gpu_run,
    optimum,
    record,
    rounds,
    shuffled,
    verification,
)
from tests.unit.suite.report.report_scenes import (
    MIB,
    baseline,
    disk_run,
    lines_of,
    only_table,
    sized,
    two_machines,
    unverified,
    with_memory,
)

ROOT = Path(__file__).resolve().parents[4]
NAMES = ["paper", "leaderboard", "anatomy", "optimal"]
ANATOMY = {"device/rows": 512_000, "device/staging": 128_000, "host/rows": 51_200_000, "host/index": 160_000}


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
    assert sheets([]) == ()
    failed = [record("a", status=Status.CRASHED, reason="boom", phase="build")]
    assert list(made(failed)) == ["paper"]
    on_host = rounds("a", [9.0], setting={"device": "cpu"}, offloads=False)
    assert list(made(on_host)) == ["paper", "anatomy"]


def test_order_of_records_does_not_matter():
    records = [*gpu_run(), *cpu_run(), *disk_run(), *two_machines()]
    once, again = (sheets(group_records(given)) for given in (records, shuffled(records, 1)))
    for one, other in zip(once, again, strict=True):
        assert to_markdown(one) == to_markdown(other)
        assert to_csv(one) == to_csv(other)


@pytest.mark.parametrize("name", ["paper", "leaderboard", "anatomy", "optimal"])
def test_two_machines_never_share_a_block_and_no_two_headings_are_the_same(name):
    where = (environment(), environment(machine="another"), environment(machine="a third", gpu="NVIDIA A100"))
    given = [run for here in where for run in rounds("a", [9e5, 9.1e5], where=here, least=optimum())]
    machine_of = {run.key: run.environment.machine for run in given}
    sheet = made(given)[name]
    machines = [
        {machine_of[key] for line in block.lines for key in line.get("records", "").split()} for block in sheet.tables
    ]
    assert [len(found) for found in machines] == [1, 1, 1]
    assert len({block.heading for block in sheet.tables}) == len(sheet.tables)


def test_paper_has_the_papers_columns_and_says_whose_each_row_is():
    sheet = made(baseline([1, 1, 1], noise=0.001))["paper"]
    block = only_table(sheet)
    ours, colossal, _ = lines_of(block)
    assert float(ours.pop("it/s")) == 100
    assert ours == {
        "system": "full_gpu",
        "AUROC": "0.79110",
        "accuracy": "0.78250",
        "epoch time": "~24.0s",
        "GPU GB allocated": "1.25",
        "GPU GB reserved": "2.00",
        "CPU GB": "18.50",
        "row is": "measured",
        "hardware": "NVIDIA H100 80GB HBM3",
        "batch": "16,384",
        "cache ratio or budget": "1 %",
    }
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


def test_leaderboard_lists_every_budget_and_says_how_each_was_compared():
    large = {"cache_ratio": 0.05}
    records = [
        *baseline([1, 1, 1], noise=0.001),
        *sized("a", [0.8] * 3, 3 * MIB),
        *sized("b", [0.4] * 3, 5 * MIB),
        *baseline([1, 1, 1], noise=0.001, setting=large),
        *sized("c", [0.2] * 3, 5 * MIB, setting=large),
    ]
    sheet = made(records)["leaderboard"]
    found = [
        (line["within"], line["place"], line["system"], line["compared with the first"])
        for line in lines_of(only_table(sheet))
        if line["within"] in ("4 MiB", "8 MiB")
    ]
    assert found == [
        ("4 MiB", "1", "a", "n/a"),
        ("8 MiB", "1", "a", "n/a"),
        ("8 MiB", "2", "b", "in turns"),
        ("8 MiB", "3", "c", "through full_gpu"),
    ]
    line = line_of(sheet, "c", within="8 MiB")
    assert line["vs full_gpu"].startswith("0.20 [")
    assert line["relative to the first"].startswith("0.25 [")
    assert (line["device bytes"], line["device MB"], line["cache ratio or budget"]) == (f"{5 * MIB:,}", "5.24", "5 %")
    raw = row_of(sheet, system="b", budget_bytes=8 * MIB)
    assert (raw["place"], raw["tied"], raw["device_bytes"], raw["compared"]) == (2, False, 5 * MIB, "in turns")
    assert (raw["ratio"], raw["to_first"]) == pytest.approx((0.4, 0.5))
    assert raw["to_first_low"] <= 0.5 <= raw["to_first_high"]
    first = row_of(sheet, system="a", budget_bytes=8 * MIB)
    assert first["to_first"] == 1
    assert first[["to_first_low", "to_first_high", "compared"]].isna().all()


def test_ties_are_said_on_every_line_that_shares_a_place_and_a_single_build_has_no_interval():
    given = [*sized("a", [0.9] * 2, MIB), *sized("b", [0.901] * 2, MIB), *sized("c", [0.001] * 2, MIB)]
    places = [line["place"] for line in lines_of(only_table(made(given)["leaderboard"]))]
    assert places == ["1, too close to call", "1, too close to call", "3"]
    one = {"setting": {"builds": 1}}
    sheet = made([*sized("a", [0.8], MIB, **one), *sized("b", [0.4], MIB, **one)])["leaderboard"]
    assert line_of(sheet, "b")["relative to the first"] == "0.50 [n/a]"
    assert line_of(sheet, "a")["relative to the first"] == "1"


def test_anatomy_lists_the_largest_bytes_of_rounds_by_tier_and_purpose():
    given = [
        *with_memory(rounds("cache", [9.0, 9.1]), anatomy_bytes=ANATOMY),
        *with_memory([record("cache", round=2)], anatomy_bytes={**ANATOMY, "host/index": 170_000}),
        *with_memory([record("bare")], anatomy_bytes={}),
        record("late", status=Status.TIMEOUT, reason="slow"),
        record("wrong"),
        record("wrong", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False)),
    ]
    sheet = made(given)["anatomy"]
    lines = lines_of(only_table(sheet))
    assert [(line["tier"], line["purpose"], line["bytes"]) for line in lines] == [
        ("device", "rows", "512,000"),
        ("device", "staging", "128,000"),
        ("host", "rows", "51,200,000"),
        ("host", "index", "170,000"),
        ("all", "all", "52,010,000"),
    ]
    assert (lines[3]["MB"], lines[3]["share of all"]) == ("0.17", "0.33 %")
    assert row_of(sheet, tier="host", purpose="index")["share"] == pytest.approx(170 / 52_010)
    assert set(sheet.frame["system"]) == {"cache"}


def test_optimal_is_of_the_round_that_was_counted_and_of_nobody_without_an_optimum_or_who_was_wrong():
    wrong = record("b", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False))
    given = [*rounds("cache", [9.0, 9.1, 9.2], least=optimum()), *rounds("b", [9.0], least=optimum()), wrong]
    sheet = made([*given, *rounds("c", [9.0])])["optimal"]
    assert lines_of(only_table(sheet)) == [
        {
            "system": "cache",
            "cache ratio": "1 %",
            "slots": "337,625",
            "steps": "10",
            "hit rate": "95.00 %",
            "unique misses": "50,000",
            "optimal misses": "40,000",
            "misses, % of optimal": "125 %",
            "MB moved": "46.44",
            "minimum MB": "37.15",
            "bytes over minimum": "1.25",
        }
    ]
    raw = row_of(sheet, system="cache")
    assert (raw["bytes_moved"], raw["minimum_bytes"]) == (46_440_000, 37_152_000)
