"""Where bytes lie, and how far caches are from the optimum."""

from __future__ import annotations

import pytest

from suite.records.record import Record
from suite.records.status import Status
from suite.tables.formats import to_csv
from tests.unit.suite.fabricate import (
    optimum,
    record,
    rounds,
    verification,
)
from tests.unit.suite.report.report_scenes import (
    disk_run,
    lines_of,
    only_block,
    simulation,
    with_memory,
)
from tests.unit.suite.report.sheet_scenes import made, notes_of, row_of

ANATOMY = {"device/rows": 512_000, "device/staging": 128_000, "host/rows": 51_200_000, "host/index": 160_000}


def cached(**changes) -> list[Record]:
    """A cache of 1,000 slots over 100,000 rows of 512 bytes."""
    least = optimum().model_copy(update={"slots": 1000})
    return with_memory(rounds("cache", [9.0, 9.1], least=least, **changes), anatomy_bytes=ANATOMY)


def test_anatomy_lists_bytes_shares_and_bytes_per_row_and_slot():
    sheet = made(cached())["anatomy"]
    lines = lines_of(only_block(sheet))
    assert [(line["tier"], line["purpose"], line["bytes"]) for line in lines] == [
        ("device", "rows", "512,000"),
        ("device", "staging", "128,000"),
        ("host", "rows", "51,200,000"),
        ("host", "index", "160,000"),
        ("all", "all", "52,000,000"),
    ]
    index = lines[3]
    assert (index["MB"], index["share of all"]) == ("0.16", f"{100 * 160 / 52000:.2f} %")
    assert (index["bytes per row of the table"], index["bytes per slot"]) == ("1.60", "160.0")
    assert sum(float(line["share of all"].removesuffix(" %")) for line in lines[:-1]) == pytest.approx(100, abs=0.03)
    raw = row_of(sheet, tier="host", purpose="index")
    assert (raw["bytes"], raw["table_rows"], raw["bytes_per_row"]) == (160_000, 100_000, 1.6)
    assert (raw["slots"], raw["bytes_per_slot"]) == (1000, 160)


def test_anatomy_does_not_guess_rows_or_slots():
    unknown = with_memory(rounds("cache", [9.0]), anatomy_bytes=ANATOMY)
    (line, *_) = lines_of(only_block(made(unknown)["anatomy"]))
    assert (line["bytes per row of the table"], line["bytes per slot"]) == ("n/a", "n/a")
    on_disk = made(disk_run())["anatomy"]
    assert on_disk.frame["table_rows"].isna().all()
    written_rows = {"device/rows": 512_000, "disk/rows": 1_024_000}
    file_cache = with_memory(cached(), anatomy_bytes=written_rows)
    assert made(file_cache)["anatomy"].frame["table_rows"].isna().all()
    disagreeing = with_memory(rounds("full_gpu", [9.0]), anatomy_bytes={"device/rows": 512 * 99_999})
    assert made([*cached(), *disagreeing])["anatomy"].frame["table_rows"].isna().all()
    odd = with_memory(rounds("full_gpu", [9.0]), anatomy_bytes={"device/rows": 511})
    assert made(odd)["anatomy"].frame["table_rows"].isna().all()


def test_rows_of_a_table_are_known_wherever_the_same_tables_were_trained():
    all_on_device = with_memory(rounds("full_gpu", [9.0]), anatomy_bytes={"device/rows": 51_200_000})
    on_disk = {"device/rows": 1, "disk/rows": 2}
    other = with_memory(rounds("cache[tier=file]", [9.0], setting={"cache_ratio": 0.2}), anatomy_bytes=on_disk)
    elsewhere = with_memory(rounds("cache[tier=file]", [9.0], setting={"max_rows": 9}), anatomy_bytes=on_disk)
    frame = made([*all_on_device, *other, *elsewhere])["anatomy"].frame
    assert set(frame[frame["max_rows"].isna()]["table_rows"]) == {100_000}
    assert frame[frame["max_rows"] == 9]["table_rows"].isna().all()


def test_anatomy_takes_the_largest_of_rounds_and_says_who_has_none():
    given = [
        *cached(),
        *with_memory([record("cache", round=2)], anatomy_bytes={**ANATOMY, "host/index": 170_000}),
        *with_memory([record("bare")], anatomy_bytes={}),
        record("late", status=Status.TIMEOUT, reason="slow"),
        record("wrong"),
        record("wrong", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False)),
    ]
    sheet = made(given)["anatomy"]
    assert row_of(sheet, tier="host", purpose="index")["bytes"] == 170_000
    assert set(sheet.frame["system"]) == {"cache"}
    assert notes_of(only_block(sheet)) == (
        "bare: lists no bytes",
        "late: not measured, timeout",
        "wrong: not measured, wrong_answer",
    )


def test_optimal_is_of_the_round_that_was_counted_and_keeps_measured_and_simulated_apart():
    sheet = made(rounds("cache", [9.0, 9.1, 9.2], least=optimum()), simulation())["optimal"]
    measured, simulated = sheet.blocks
    assert lines_of(measured) == [
        {
            "system or policy": "cache",
            "row is": "measured",
            "cache ratio": "1 %",
            "slots": "337,625",
            "steps": "10",
            "hit rate": "95.00 %",
            "unique misses": "50,000",
            "optimal misses": "40,000",
            "misses, % of optimal": "125.0 %",
            "MB moved": "46.44",
            "minimum MB": "37.15",
            "bytes over minimum": "1.25",
        }
    ]
    lru, compulsory = lines_of(simulated)
    assert lru == {
        "system or policy": "lru",
        "row is": "simulated",
        "cache ratio": "1 %",
        "slots": "500",
        "steps": "100",
        "hit rate": "75.00 %",
        "unique misses": "1,000",
        "optimal misses": "800",
        "misses, % of optimal": "125.0 %",
        "MB moved": "0.61",
        "minimum MB": "0.41",
        "bytes over minimum": "1.50",
    }
    assert (compulsory["optimal misses"], compulsory["misses, % of optimal"], compulsory["unique misses"]) == (
        "n/a",
        "n/a",
        "0",
    )
    assert notes_of(simulated) == ("odd at 0.01: cannot_replay: needs 640 slots",)
    assert "Simulated, not measured" in simulated.facts[0]
    assert set(sheet.frame["kind"]) == {"measured", "simulated"}
    raw = row_of(sheet, kind="measured")
    assert (raw["bytes_moved"], raw["minimum_bytes"]) == (46_440_000, 37_152_000)
    raw = row_of(sheet, system="lru")
    assert (raw["bytes_moved"], raw["minimum_bytes"], raw["bytes_over_minimum"]) == (614_400, 409_600, 1.5)


def test_interrupted_simulation_says_so_and_a_path_is_never_printed():
    stream = simulation().stream.model_copy(update={"workload": None, "trace_file": "/home/me/ids.npy", "name": "ids"})
    sheet = made([], simulation(complete=False, stream=stream))["optimal"]
    assert notes_of(only_block(sheet))[0] == "The simulation was interrupted: rows are missing."
    assert "ids of a trace file" in only_block(sheet).heading
    assert "/home" not in to_csv(sheet) + str(sheet.blocks)


def test_simulations_of_one_stream_have_headings_of_their_own():
    sheet = made([], simulation(), simulation())["optimal"]
    assert len({block.heading for block in sheet.blocks}) == 2


def test_optimal_leaves_out_who_has_no_optimum_or_was_wrong():
    wrong = record("b", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False))
    given = [*rounds("a", [9.0], least=optimum()), *rounds("b", [9.0], least=optimum()), wrong, *rounds("c", [9.0])]
    assert [line["system or policy"] for line in lines_of(only_block(made(given)["optimal"]))] == ["a"]
