from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

from suite.records.groups import group_records
from suite.records.published import NOTE
from suite.records.record import Record
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.report.sheets.all_sheets import sheets
from suite.report.sheets.board import binary_size, contest_headings
from suite.report.sheets.formats import to_csv
from suite.report.sheets.leaderboard import contests, standings
from suite.report.sheets.sheet import Sheet
from suite.report.source import Source
from suite.tables.quantities import amount, gigabytes
from tests.unit.suite.fabricate import (
    cpu_run,
    environment,
    gpu_run,
    optimum,
    prediction,
    record,
    rounds,
    shuffled,
    verification,
)
from tests.unit.suite.report.report_scenes import (
    MIB,
    disk_run,
    lines_of,
    only_block,
    simulation,
    sized,
    source,
    two_machines,
    unverified,
    with_memory,
)

ROOT = Path(__file__).resolve().parents[4]
NAMES = ["paper", "leaderboard", "anatomy", "optimal", "predicted"]


def made(records: list[Record], *simulations) -> dict[str, Sheet]:
    return {sheet.name: sheet for sheet in sheets(source(records, *simulations))}


def line_of(sheet: Sheet, system: str, **cells: str) -> dict[str, str]:
    head = sheet.blocks[0].heads[0].words if sheet.name != "leaderboard" else "system"
    (line,) = [
        line
        for block in sheet.blocks
        for line in lines_of(block)
        if line.get(head) == system and all(line[name] == text for name, text in cells.items())
    ]
    return line


def row_of(sheet: Sheet, **values: object):
    found = sheet.frame
    for name, value in values.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


@pytest.fixture(scope="module")
def published() -> Source:
    records, problems = RecordStore(ROOT / "results" / "published").load_all()
    assert records
    assert not problems
    return source(records)


def test_sheets_come_in_reading_order_and_the_empty_ones_not_at_all():
    assert list(made(gpu_run(), simulation())) == NAMES
    assert sheets(Source(groups=())) == ()
    failed = [record("a", status=Status.CRASHED, reason="boom", phase="build")]
    assert list(made(failed)) == ["paper"]
    on_host = rounds("a", [9.0], setting={"device": "cpu"}, offloads=False)
    assert list(made(on_host)) == ["paper", "anatomy"]
    assert [sheet.name for sheet in sheets(Source(groups=(), simulations=(simulation(),)))] == ["optimal"]


@pytest.mark.parametrize("seed", range(4))
def test_order_of_records_does_not_matter(seed):
    records = [*gpu_run(), *cpu_run(), *disk_run(), *two_machines()]
    once, again = (sheets(source(given, simulation())) for given in (records, shuffled(records, seed)))
    assert [(sheet.name, sheet.legend, sheet.blocks) for sheet in once] == [
        (sheet.name, sheet.legend, sheet.blocks) for sheet in again
    ]
    assert [to_csv(sheet) for sheet in once] == [to_csv(sheet) for sheet in again]


def test_every_line_has_a_cell_per_column_and_every_column_a_name_of_its_own():
    for sheet in sheets(source([*gpu_run(), *cpu_run(), *disk_run()], simulation())):
        for block in sheet.blocks:
            assert len({head.words for head in block.heads}) == len(block.heads)
            assert all(len(line.cells) == len(block.heads) for line in block.lines)
            assert block.lines


def test_every_measured_line_names_its_records_and_no_other_does(published):
    records = {run.key: run for run in [*gpu_run(), *cpu_run(), *disk_run(), *published.records]}
    for sheet in sheets(source(records.values(), simulation())):
        for block in sheet.blocks:
            for line in block.lines:
                own = not {"published", "simulated"} & set(line.cells) and "cells" not in {
                    head.words for head in block.heads
                }
                assert bool(line.keys) == own
                assert {records[key].cell.system for key in line.keys} <= set(line.cells)
        keys = [key for cell in sheet.frame.get("records", []) if isinstance(cell, str) for key in cell.split()]
        assert set(keys) <= set(records)


@pytest.mark.parametrize("name", ["paper", "leaderboard", "anatomy", "optimal", "predicted"])
def test_two_machines_never_share_a_block_and_no_two_headings_are_the_same(name):
    where = (environment(), environment(machine="another"), environment(machine="a third", gpu="NVIDIA A100"))
    given = [
        run
        for here in where
        for run in rounds("a", [9e5, 9.1e5], where=here, predicted=prediction(50.0), least=optimum())
    ]
    machine_of = {run.key: run.environment.machine for run in given}
    sheet = made(given)[name]
    measured = [block for block in sheet.blocks if any(line.keys for line in block.lines)]
    machines = [{machine_of[key] for line in block.lines for key in line.keys} for block in measured]
    assert [len(found) for found in machines] == [1, 1, 1]
    assert len({block.heading for block in sheet.blocks}) == len(sheet.blocks)


def test_two_settings_of_a_dataset_are_two_blocks_of_the_paper_each_with_the_published_rows():
    given = [record("a"), record("a", setting={"cache_ratio": 0.05})]
    first, second = made(given)["paper"].blocks
    assert [line["cache ratio or budget"] for line in lines_of(first)] == ["1 %", "1 %", "1 %"]
    assert [line["cache ratio or budget"] for line in lines_of(second)] == ["5 %", "1 %", "1 %"]
    assert first.lines[1:] == second.lines[1:]
    assert first.heading != second.heading


def test_paper_has_the_papers_columns_and_says_whose_each_row_is():
    block = only_block(made(rounds("full_gpu", [1.6e6, 1.64e6, 1.63e6], offloads=False))["paper"])
    assert [head.words for head in block.heads] == [
        "method",
        "AUROC",
        "accuracy",
        "throughput it/s",
        "time per epoch",
        "GPU memory allocated GB",
        "GPU memory reserved GB",
        "CPU memory GB",
        "row is",
        "hardware",
        "batch",
        "cache ratio or budget",
    ]
    ours, colossal, _ = lines_of(block)
    assert ours == {
        "method": "full_gpu",
        "AUROC": "0.79110",
        "accuracy": "0.78250",
        "throughput it/s": amount(1.63e6 / 16384),
        "time per epoch": "~24.1s",
        "GPU memory allocated GB": "1.25",
        "GPU memory reserved GB": "2.00",
        "CPU memory GB": "18.50",
        "row is": "measured",
        "hardware": "NVIDIA H100 80GB HBM3",
        "batch": "16,384",
        "cache ratio or budget": "1 %",
    }
    assert (colossal["row is"], colossal["hardware"], colossal["batch"]) == (
        "published",
        "NVIDIA A100 80 GB; AMD EPYC 7543, 32 cores; 512 GB",
        "16,384",
    )


@pytest.mark.parametrize("workload", ["criteo_kaggle", "avazu", "criteo_1tb"])
def test_published_rows_are_verbatim(workload):
    with (ROOT / "suite" / "published.csv").open(encoding="utf-8", newline="") as file:
        expected = [fields for fields in csv.DictReader(file) if fields["workload"] == workload]
    block = only_block(made([record("a", setting={"workload": workload})])["paper"])
    found = [line for line in lines_of(block) if line["row is"] == "published"]
    assert len(found) == len(expected) == 2
    columns = {
        "method": "system",
        "AUROC": "auroc",
        "accuracy": "accuracy",
        "throughput it/s": "steps_per_s",
        "GPU memory allocated GB": "gpu_allocated_gb",
        "GPU memory reserved GB": "gpu_reserved_gb",
        "CPU memory GB": "cpu_gb",
    }
    for line, fields in zip(found, expected, strict=True):
        assert {head: line[head] for head in columns} == {head: fields[name] for head, name in columns.items()}
    times = {"49": "49s", "30": "30s", "31": "31s", "21": "21s", "6000": "1h40m", "5700": "1h35m"}
    assert [line["time per epoch"] for line in found] == [times[fields["epoch_s"]] for fields in expected]


def test_paper_says_what_gb_means_and_what_labels_are_worth():
    synthetic, real = (made([record("a", setting=setting)])["paper"] for setting in ({}, {"data": "real"}))
    assert NOTE in synthetic.legend
    assert any("do not compare" in note for note in only_block(synthetic).notes)
    assert not any("do not compare" in note for note in only_block(real).notes)
    other = made([record("a", setting={"workload": "criteo_kaggle@drift"})])["paper"]
    assert "The paper has no rows for this dataset." in only_block(other).notes


def test_paper_shows_what_failed_and_what_was_not_verified():
    sheet = made([*unverified([record("bare")]), *gpu_run()[-3:]])["paper"]
    assert line_of(sheet, "bare")["row is"] == "measured, not verified"
    failed = line_of(sheet, "reference")
    assert (failed["row is"], failed["AUROC"], failed["throughput it/s"]) == ("oom_device", "n/a", "n/a")
    assert "reference: oom_device in phase build: needs 17.3 GB, the device has 16 GB" in only_block(sheet).notes


def test_cpu_says_cpu_and_has_no_gpu_memory():
    line = line_of(made(cpu_run())["paper"], "cache[tier=disk]")
    assert line["hardware"] == "AMD EPYC 7543 32-Core Processor, 16 cores, CPU only"
    assert (line["GPU memory allocated GB"], line["GPU memory reserved GB"]) == ("n/a", "n/a")
    assert line["cache ratio or budget"] == "50.00 MB"


def test_paper_numbers_are_those_of_the_published_records(published):
    sheet = next(sheet for sheet in sheets(published) if sheet.name == "paper")
    runs_of = {run.key: run for run in published.records}
    checked = 0
    for block in sheet.blocks:
        for line, cells in zip(block.lines, lines_of(block), strict=True):
            measured = [m for key in line.keys if (m := runs_of[key].measurement) is not None]
            if not measured:
                continue
            checked += 1
            assert cells["throughput it/s"] == amount(statistics.median(m.timing.steps_per_s for m in measured))
            assert cells["AUROC"] == f"{statistics.median(m.quality.auroc for m in measured):.5f}"
            assert cells["accuracy"] == f"{statistics.median(m.quality.accuracy for m in measured):.5f}"
            assert cells["CPU memory GB"] == gigabytes(max(m.memory.host_peak_rss_bytes for m in measured))
    measured_systems = [
        name
        for group in published.groups
        for name, runs in group.rounds_by_system.items()
        if any(run.measurement is not None for run in runs)
    ]
    assert checked == len(measured_systems) > 0


def test_paper_frame_holds_both_kinds_of_rows():
    sheet = made(gpu_run())["paper"]
    assert set(sheet.frame["kind"]) == {"measured", "published"}
    ours = row_of(sheet, system="full_gpu")
    assert (ours["device_allocated_bytes"], ours["status"]) == (18_000_000_000, "ok")
    assert row_of(sheet, system="torchrec")["device_allocated_bytes"] == round(16.13 * 2**30)


def test_leaderboard_lists_every_budget_with_the_standings_of_the_contest():
    records = [*sized("a", [900.0, 905.0, 902.0], 3 * MIB), *sized("b", [400.0, 404.0, 402.0], 5 * MIB)]
    sheet = made(records)["leaderboard"]
    (contest,) = contests(group_records(records))
    found = [(line["within"], line["place"], line["system"]) for line in lines_of(only_block(sheet))]
    assert found == [("4 MiB", "1", "a"), ("8 MiB", "1", "a"), ("8 MiB", "2", "b")]
    _, second = standings(contest, 8 * MIB)
    ratio = second.to_first
    assert ratio is not None
    line = line_of(sheet, "b")
    assert line["relative to the first"] == f"{amount(ratio.ratio)} [{amount(ratio.low)}, {amount(ratio.high)}]"
    assert line["samples/s"] == amount(statistics.geometric_mean([400.0, 404.0, 402.0]))
    assert (line["device bytes"], line["device MB"], line["rounds"]) == (f"{5 * MIB:,}", "5.24", "3")
    assert line["bytes are"] == "the driver's figure, CUDA context included"
    raw = row_of(sheet, system="b")
    assert (raw["budget_bytes"], raw["place"], raw["tied"], raw["device_bytes"]) == (8 * MIB, 2, False, 5 * MIB)
    assert (raw["to_first"], raw["to_first_low"], raw["to_first_high"]) == (ratio.ratio, ratio.low, ratio.high)
    first = row_of(sheet, system="a", budget_bytes=8 * MIB)
    assert first["to_first"] == 1
    assert first[["to_first_low", "to_first_high"]].isna().all()


def test_ties_are_said_on_every_line_that_shares_a_place():
    records = [*sized("a", [900.0, 910.0], MIB), *sized("b", [905.0, 900.0], MIB), *sized("c", [1.0, 1.01], MIB)]
    places = [line["place"] for line in lines_of(only_block(made(records)["leaderboard"]))]
    assert places == ["1, too close to call", "1, too close to call", "3"]


def test_single_round_has_no_interval():
    sheet = made([*sized("a", [900.0], MIB), *sized("b", [450.0], MIB)])["leaderboard"]
    assert line_of(sheet, "b")["relative to the first"] == "0.50 [n/a]"
    assert line_of(sheet, "a")["relative to the first"] == "1"


def test_wrong_answers_and_the_unverified_are_in_no_leaderboard():
    wrong = record("wrong", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False))
    given = [
        *sized("good", [9.0, 9.1], MIB),
        *sized("wrong", [99.0], MIB),
        wrong,
        *unverified(sized("bare", [99.0], MIB)),
    ]
    sheet = made(given)["leaderboard"]
    assert {line["system"] for line in lines_of(only_block(sheet))} == {"good"}
    assert set(sheet.frame["system"]) == {"good"}


def test_contest_on_a_cpu_says_ram_over_disk_and_one_on_a_gpu_does_not():
    sheet = made([*gpu_run(), *disk_run(), *disk_run("other[tier=file]", 2.0)])["leaderboard"]
    said = ["RAM over disk on a CPU" in " ".join(block.facts) for block in sheet.blocks]
    on_cpu = [contest.group.on_cpu for contest in contests(group_records([*gpu_run(), *disk_run()]))]
    assert sorted(said) == sorted(on_cpu) == [False, True]


def test_disk_run_names_the_budget_of_each_cell():
    found = [
        (line["within"], line["cache ratio or budget"], line["device bytes"])
        for line in lines_of(only_block(made(disk_run())["leaderboard"]))
    ]
    assert found == [
        (f"{size} MiB", f"{amount(size * MIB / 1e6)} MB", f"{size * MIB * 3 // 4:,}") for size in (2, 4, 8, 16)
    ]


def test_contest_facts_hold_for_all_its_cells():
    given = [
        *sized("a", [9.0, 9.1], MIB, where=environment(code="one")),
        *sized("a", [8.0, 8.1], MIB, where=environment(code="two"), setting={"cache_ratio": 0.5}),
    ]
    facts = " ".join(only_block(made(given)["leaderboard"]).facts)
    assert "cache ratio" not in facts
    assert "several, run them again to compare alike" in facts
    assert "code one" in facts
    assert "code two" in facts


def test_contests_of_one_title_have_headings_of_their_own():
    held = contests(group_records([*sized("a", [9.0], MIB), *sized("a", [9.0], MIB, setting={"batch_size": 8192})]))
    assert len(set(contest_headings(held))) == 2


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1 B"),
        (512, "512 B"),
        (1024, "1 KiB"),
        (MIB // 2, "512 KiB"),
        (MIB, "1 MiB"),
        (2**33, "8 GiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_budgets_are_written_in_powers_of_1024(size, text):
    assert binary_size(size) == text


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
    assert only_block(sheet).notes == (
        "bare: lists no bytes",
        "late: not measured, timeout",
        "wrong: not measured, wrong_answer",
    )


def test_anatomy_of_the_published_records_is_theirs(published):
    sheet = next(sheet for sheet in sheets(published) if sheet.name == "anatomy")
    by_key = {run.key: run for run in published.records}
    parts = sheet.frame[sheet.frame["tier"] != "all"]
    assert len(parts) > 30
    for _, row in parts.iterrows():
        measured = [m for key in row["records"].split() if (m := by_key[key].measurement) is not None]
        sizes = [m.memory.anatomy_bytes for m in measured]
        assert row["bytes"] == max(size[f"{row['tier']}/{row['purpose']}"] for size in sizes)
    totals = sheet.frame[sheet.frame["tier"] == "all"].set_index(["setting", "system"])["bytes"]
    sums = parts.groupby(["setting", "system"])["bytes"].sum()
    assert totals.sort_index().equals(sums.sort_index())
    whole = {
        (run.cell.workload, run.cell.max_rows): run.measurement.memory.anatomy_bytes["device/rows"]
        // (4 * run.cell.embedding_dim)
        for run in published.records
        if run.cell.system == "full_gpu"
    }
    tables = zip(sheet.frame["workload"], sheet.frame["max_rows"], strict=True)
    assert sheet.frame["table_rows"].tolist() == [whole[table] for table in tables]


def test_optimal_sums_rounds_and_keeps_measured_and_simulated_apart():
    sheet = made(rounds("cache", [9.0, 9.1, 9.2], least=optimum()), simulation())["optimal"]
    measured, simulated = sheet.blocks
    assert lines_of(measured) == [
        {
            "system or policy": "cache",
            "row is": "measured",
            "cache ratio": "1 %",
            "slots": "337,625",
            "steps": "30",
            "hit rate": "95.00 %",
            "unique misses": "150,000",
            "optimal misses": "120,000",
            "misses, % of optimal": "125.0 %",
            "MB moved": "139.3",
            "minimum MB": "111.5",
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
    assert simulated.notes == ("odd at 0.01: cannot_replay: needs 640 slots",)
    assert "Simulated, not measured" in simulated.facts[0]
    assert set(sheet.frame["kind"]) == {"measured", "simulated"}
    raw = row_of(sheet, kind="measured")
    assert (raw["bytes_moved"], raw["minimum_bytes"]) == (3 * 46_440_000, 3 * 37_152_000)
    raw = row_of(sheet, system="lru")
    assert (raw["bytes_moved"], raw["minimum_bytes"], raw["bytes_over_minimum"]) == (614_400, 409_600, 1.5)


def test_interrupted_simulation_says_so_and_a_path_is_never_printed():
    stream = simulation().stream.model_copy(update={"workload": None, "trace_file": "/home/me/ids.npy", "name": "ids"})
    sheet = made([], simulation(complete=False, stream=stream))["optimal"]
    assert only_block(sheet).notes[0] == "The simulation was interrupted: rows are missing."
    assert "ids of a trace file" in only_block(sheet).heading
    assert "/home" not in to_csv(sheet) + str(sheet.blocks)


def test_simulations_of_one_stream_have_headings_of_their_own():
    sheet = made([], simulation(), simulation())["optimal"]
    assert len({block.heading for block in sheet.blocks}) == 2


def test_optimal_does_not_understate_what_one_round_does_not_know():
    known, blind = rounds("cache", [9.0, 9.1], least=optimum())
    traffic = blind.measurement.traffic.model_copy(update={"bytes_fetched": None})
    blind = blind.model_copy(update={"measurement": blind.measurement.model_copy(update={"traffic": traffic})})
    (line,) = lines_of(only_block(made([known, blind])["optimal"]))
    assert (line["MB moved"], line["unique misses"]) == ("n/a", "100,000")


def test_optimal_leaves_out_who_has_no_optimum_or_was_wrong():
    wrong = record("b", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False))
    given = [*rounds("a", [9.0], least=optimum()), *rounds("b", [9.0], least=optimum()), wrong, *rounds("c", [9.0])]
    assert [line["system or policy"] for line in lines_of(only_block(made(given)["optimal"]))] == ["a"]


def test_predicted_stands_beside_measured_with_the_error_of_the_time_of_a_step():
    sheet = made(rounds("a", [819_200.0], predicted=prediction(40.0)))["predicted"]
    line = line_of(sheet, "a")
    assert (line["predicted it/s"], line["measured it/s"]) == ("40.00", "50.00")
    assert line["error of the time of a step"] == "+25.0 %"
    raw = row_of(sheet, system="a")
    assert raw["predicted_dense_step_ms"] + raw["predicted_embedding_kernels_ms"] == pytest.approx(1e3 / 40)
    assert raw["predicted_dense_step_ms"] == pytest.approx(0.75 * 1e3 / 40)


def test_median_errors_by_dataset_and_overall_of_one_machine_each():
    def cells(errors: dict[str, float], **changes) -> list[Record]:
        return [record(name, predicted=prediction(50 / (1 + error)), **changes) for name, error in errors.items()]

    given = [
        *cells({"a": 0.1, "b": -0.3, "c": 0.2}),
        *cells({"a": 0.5}, setting={"workload": "avazu"}),
        *cells({"a": 9.0}, where=environment(machine="another")),
    ]
    sheet = made(given)["predicted"]
    medians = [lines_of(block) for block in sheet.blocks if block.heading.startswith("Median absolute error")]
    told = [[(line["dataset"], line["cells"], line["median absolute error"]) for line in lines] for lines in medians]
    here = [
        ("Criteo Kaggle, synthetic", "3", "20.0 %"),
        ("Avazu, synthetic", "1", "50.0 %"),
        ("all datasets", "4", "25.0 %"),
    ]
    there = [("Criteo Kaggle, synthetic", "1", "900.0 %"), ("all datasets", "1", "900.0 %")]
    assert sorted(told) == sorted([here, there])
    raw = sheet.frame[sheet.frame["kind"] == "median over cells"]
    assert sorted(raw["median_absolute_error"]) == pytest.approx([0.2, 0.25, 0.5, 9.0, 9.0])


def test_predictions_of_the_published_records_are_theirs(published):
    sheet = next(sheet for sheet in sheets(published) if sheet.name == "predicted")
    by_key = {run.key: run for run in published.records}
    cells = sheet.frame[sheet.frame["kind"] == "measured"]
    predicted = [
        name
        for group in published.groups
        for name, runs in group.rounds_by_system.items()
        if any(run.prediction is not None and run.measurement is not None for run in runs)
    ]
    assert sorted(cells["system"]) == sorted(predicted)
    for _, row in cells.iterrows():
        runs = [run for key in row["records"].split() if (run := by_key[key]).prediction and run.measurement]
        errors = [run.measurement.timing.steps_per_s / run.prediction.steps_per_s - 1 for run in runs]
        assert row["prediction_error"] == pytest.approx(statistics.median(errors))
        terms = {name: row[f"predicted_{name}_ms"] for name in runs[0].prediction.terms_s}
        assert sum(terms.values()) == pytest.approx(1e3 / row["predicted_steps_per_s"])
    overall = sheet.frame[sheet.frame["workload"] == "all datasets"]
    assert sum(overall["cells"]) == len(cells)
    assert len(overall) == len({(run.environment.machine, run.environment.threads) for run in published.records})
