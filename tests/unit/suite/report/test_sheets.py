from __future__ import annotations

import csv

import pytest

from suite.records.groups import group_records
from suite.records.published import NOTE
from suite.records.status import Status
from suite.report.sheets import sheets
from suite.report.sheets.leaderboard import leaderboard_headings
from suite.report.source import Source
from suite.report.standings import leaderboards
from suite.tables.formats import to_csv, to_markdown
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
    only_block,
    simulation,
    sized,
    source,
    two_machines,
    unverified,
)
from tests.unit.suite.report.sheet_scenes import NAMES, ROOT, line_of, made, notes_of, row_of


def test_sheets_come_in_reading_order_and_the_empty_ones_not_at_all():
    assert list(made(gpu_run(), simulation())) == NAMES
    assert sheets(Source(groups=())) == ()
    failed = [record("a", status=Status.CRASHED, reason="boom", phase="build")]
    assert list(made(failed)) == ["paper"]
    on_host = rounds("a", [9.0], setting={"device": "cpu"}, offloads=False)
    assert list(made(on_host)) == ["paper", "anatomy"]
    assert [sheet.name for sheet in sheets(Source(groups=(), simulations=(simulation(),)))] == ["optimal"]


@pytest.mark.parametrize("seed", range(2))
def test_order_of_records_does_not_matter(seed):
    records = [*gpu_run(), *cpu_run(), *disk_run(), *two_machines()]
    once, again = (sheets(source(given, simulation())) for given in (records, shuffled(records, seed)))
    for one, other in zip(once, again, strict=True):
        assert to_markdown(one) == to_markdown(other)
        assert to_csv(one) == to_csv(other)
        assert [block.lines for block in one.blocks] == [block.lines for block in other.blocks]


def test_every_line_has_a_cell_per_column_and_every_column_a_name_of_its_own():
    for sheet in sheets(source([*gpu_run(), *cpu_run(), *disk_run()], simulation())):
        for block in sheet.blocks:
            assert len({head.words for head in block.heads}) == len(block.heads)
            assert all(len(line.cells) == len(block.heads) for line in block.lines)
            assert block.lines


def test_every_measured_line_names_its_records_and_no_other_does():
    records = {run.key: run for run in [*gpu_run(), *cpu_run(), *disk_run()]}
    for sheet in sheets(source(records.values(), simulation())):
        for block in sheet.blocks:
            for line in block.lines:
                assert bool(line.keys) == (not {"published", "simulated"} & set(line.cells))
                assert {records[key].cell.system for key in line.keys} <= set(line.cells)
        keys = [key for cell in sheet.frame.get("records", []) if isinstance(cell, str) for key in cell.split()]
        assert set(keys) <= set(records)


@pytest.mark.parametrize("name", ["paper", "leaderboard", "anatomy", "optimal"])
def test_two_machines_never_share_a_block_and_no_two_headings_are_the_same(name):
    where = (environment(), environment(machine="another"), environment(machine="a third", gpu="NVIDIA A100"))
    given = [run for here in where for run in rounds("a", [9e5, 9.1e5], where=here, least=optimum())]
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
    block = only_block(made(baseline([1, 1, 1], noise=0.001))["paper"])
    assert [head.words for head in block.heads] == [
        "system",
        "AUROC",
        "accuracy",
        "it/s",
        "epoch time",
        "GPU GB allocated",
        "GPU GB reserved",
        "CPU GB",
        "row is",
        "hardware",
        "batch",
        "cache ratio or budget",
    ]
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
    assert (colossal["row is"], colossal["hardware"], colossal["batch"]) == (
        "published",
        "NVIDIA A100 80 GB; AMD EPYC 7543, 32 cores; 512 GB",
        "16,384",
    )


@pytest.mark.parametrize("workload", ["criteo_kaggle", "avazu", "criteo_1tb"])
def test_published_rows_are_verbatim(workload):
    with (ROOT / "suite" / "records" / "published.csv").open(encoding="utf-8", newline="") as file:
        expected = [fields for fields in csv.DictReader(file) if fields["workload"] == workload]
    block = only_block(made([record("a", setting={"workload": workload})])["paper"])
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


def test_paper_says_what_gb_means_and_what_labels_are_worth():
    synthetic, real = (made([record("a", setting=setting)])["paper"] for setting in ({}, {"data": "real"}))
    assert NOTE in notes_of(only_block(synthetic))
    assert any("do not compare" in note for note in notes_of(only_block(synthetic)))
    assert not any("do not compare" in note for note in notes_of(only_block(real)))
    other = made([record("a", setting={"workload": "criteo_kaggle@drift"})])["paper"]
    assert "The paper has no rows for this dataset." in notes_of(only_block(other))


def test_paper_shows_what_failed_and_what_was_not_verified():
    sheet = made([*unverified([record("bare")]), *gpu_run()[-3:]])["paper"]
    assert line_of(sheet, "bare")["row is"] == "measured, not verified"
    failed = line_of(sheet, "reference")
    assert (failed["row is"], failed["AUROC"], failed["it/s"]) == ("oom_device", "n/a", "n/a")
    assert "reference: oom_device in phase build: needs 17.3 GB, the device has 16 GB" in notes_of(only_block(sheet))


def test_cpu_says_cpu_and_has_no_gpu_memory():
    line = line_of(made(cpu_run())["paper"], "cache[tier=disk]")
    assert line["hardware"] == "AMD EPYC 7543 32-Core Processor, 16 cores, CPU only"
    assert (line["GPU GB allocated"], line["GPU GB reserved"]) == ("n/a", "n/a")
    assert line["cache ratio or budget"] == "47.7 MiB"


def test_paper_frame_holds_both_kinds_of_rows():
    sheet = made(gpu_run())["paper"]
    assert set(sheet.frame["kind"]) == {"measured", "published"}
    ours = row_of(sheet, system="full_gpu")
    assert (ours["device_allocated_bytes"], ours["status"]) == (18_000_000_000, "ok")
    assert row_of(sheet, system="torchrec")["device_allocated_bytes"] == round(16.13 * 2**30)


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
        for line in lines_of(only_block(sheet))
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
    assert raw["to_first_low"] < 0.5 < raw["to_first_high"]
    first = row_of(sheet, system="a", budget_bytes=8 * MIB)
    assert first["to_first"] == 1
    assert first[["to_first_low", "to_first_high", "compared"]].isna().all()


def test_ties_are_said_on_every_line_that_shares_a_place_and_a_single_build_has_no_interval():
    given = [*sized("a", [0.9] * 2, MIB), *sized("b", [0.901] * 2, MIB), *sized("c", [0.001] * 2, MIB)]
    places = [line["place"] for line in lines_of(only_block(made(given)["leaderboard"]))]
    assert places == ["1, too close to call", "1, too close to call", "3"]
    one = {"setting": {"builds": 1}}
    sheet = made([*sized("a", [0.8], MIB, **one), *sized("b", [0.4], MIB, **one)])["leaderboard"]
    assert line_of(sheet, "b")["relative to the first"] == "0.50 [n/a]"
    assert line_of(sheet, "a")["relative to the first"] == "1"


def test_wrong_answers_and_the_unverified_are_in_no_leaderboard():
    wrong = record("wrong", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False))
    given = [
        *sized("good", [0.9, 0.9], MIB),
        *sized("wrong", [0.99], MIB),
        wrong,
        *unverified(sized("bare", [0.99], MIB)),
    ]
    sheet = made(given)["leaderboard"]
    assert {line["system"] for line in lines_of(only_block(sheet))} == {"good"}
    assert set(sheet.frame["system"]) == {"good"}


def test_leaderboard_on_a_cpu_says_ram_over_disk_and_one_on_a_gpu_does_not():
    sheet = made([*gpu_run(), *disk_run(), *disk_run("other[tier=file]", 2.0)])["leaderboard"]
    said = ["RAM over disk on a CPU" in " ".join(block.facts) for block in sheet.blocks]
    on_cpu = [board.groups[0].on_cpu for board in leaderboards(group_records([*gpu_run(), *disk_run()]))]
    assert sorted(said) == sorted(on_cpu) == [False, True]


def test_disk_run_names_the_budget_of_each_cell():
    found = [
        (line["within"], line["cache ratio or budget"], line["device bytes"])
        for line in lines_of(only_block(made(disk_run())["leaderboard"]))
    ]
    assert found == [(f"{size} MiB", f"{size} MiB", f"{size * MIB * 3 // 4:,}") for size in (2, 4, 8, 16)]


def test_facts_of_a_leaderboard_hold_for_all_its_cells():
    given = [
        *sized("a", [9.0, 9.1], MIB, where=environment(code="one")),
        *sized("a", [8.0, 8.1], MIB, where=environment(code="two"), setting={"cache_ratio": 0.5}),
    ]
    facts = " ".join(only_block(made(given)["leaderboard"]).facts)
    assert "cache ratio" not in facts
    assert "several, run them again to compare alike" in facts
    assert "code one" in facts
    assert "code two" in facts


def test_leaderboards_of_one_title_have_headings_of_their_own():
    held = leaderboards(group_records([*sized("a", [9.0], MIB), *sized("a", [9.0], MIB, setting={"batch_size": 8192})]))
    assert len(set(leaderboard_headings(held))) == 2
