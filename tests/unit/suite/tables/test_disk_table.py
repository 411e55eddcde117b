"""Rows on a drive: two tables per sweep of host budgets, and sentences that follow from them."""

import math

import pytest

from suite.records.groups import group_records
from suite.records.record import Status
from suite.tables.disk import Step, disk_tables, disk_verdict, rows_on_drive
from suite.tables.settings import sweeps
from tests.unit.suite.report.report_scenes import lines_of
from tests.unit.suite.tables.disk_scenes import GIB, MIB, OURS, contest, full_ram, on_drive


def verdict_of(*runs):
    (sweep,) = sweeps(group_records(record for of_system in runs for record in of_system))
    return disk_verdict(sweep)


def raced_apart(runs):
    """The same with a contest for every system and round, each beside the baseline alone."""
    names = [f"{run.cell.system} {run.cell.round}" for run in runs]
    turns = [run.turns.model_copy(update={"contest": name}) for run, name in zip(runs, names, strict=True)]
    return [run.model_copy(update={"turns": one}) for run, one in zip(runs, turns, strict=True)]


def table(block):
    """Lines by budget and system, a dictionary of cells by column each."""
    return {(line["budget"], line["system"]): line for line in lines_of(block)}


def test_budgets_of_a_sweep_stand_in_one_table_in_order():
    whole, alone = disk_tables(group_records([*contest(GIB), *contest(512 * MIB)]))
    assert list(table(whole)) == [
        (budget, system)
        for budget in ("512 MiB", "1 GiB")
        for system in ("full_ram", OURS, "mapped_table", "rocksdb_table")
    ]
    assert list(table(alone)) == list(table(whole))
    for line in (*lines_of(whole), *lines_of(alone)):
        assert "full_gpu" not in (*line, *line.values())


def test_the_whole_step_shows_speed_reads_writes_and_memory_held():
    whole, _ = disk_tables(group_records(contest()))
    ours, ram = table(whole)["1 GiB", OURS], table(whole)["1 GiB", "full_ram"]
    assert ours["samples/s"] == "9,500"
    # Student's interval of three rounds that lie 1 % apart
    low, high = (0.95 * math.exp(sign * 4.303 * 0.01 / math.sqrt(3)) for sign in (-1, 1))
    assert ours["vs full_ram"] == f"0.95 [{low:.2f}, {high:.2f}]"
    assert [ours[name] for name in ("rows read per sample", "kB read per sample", "kB written per sample")] == [
        "8.00", "4.10", "1.02",
    ]  # fmt: skip
    assert ours["memory held, % of budget"] == "99.0 %"
    assert (ram["vs full_ram"], ram["kB read per sample"], ram["memory held, % of budget"]) == (
        "1",
        "n/a",
        "n/a",
    )


def test_the_embedding_step_is_compared_with_rivals_and_the_drive():
    _, alone = disk_tables(group_records(contest()))
    found = table(alone)
    ours = found["1 GiB", OURS]
    assert (ours["embedding samples/s"], ours["vs full_ram"][:4]) == ("10,000", "0.50")
    assert (ours["vs mapped_table"], ours["vs rocksdb_table"]) == ("5.00 [5.00, 5.00]", "2.50 [2.50, 2.50]")
    assert found["1 GiB", "mapped_table"]["vs mapped_table"] == "1"
    # of the 64,000 that the drive reads a second: all steps over all seconds of turns that are now slow, now fast
    whole, alone_rows = (rows_on_drive(group_records(contest()), step) for step in Step)
    row = next(row for row in alone_rows if row["system"] == OURS)
    assert row["rows_of_drive"] == pytest.approx(8 * 10_000 / 64_000, rel=0.05)
    mapped = next(row for row in alone_rows if row["system"] == "mapped_table")
    assert math.isnan(mapped["rows_of_drive"])
    assert {row["step"] for row in whole} == {"the whole DLRM step"}


def test_the_verdict_names_budgets_share_of_ram_and_times_of_rivals():
    assert verdict_of(contest(), contest(512 * MIB, ours=(0.5, 0.25), rocksdb=(0.3, 0.1))) == (
        f"At 512 MiB {OURS} trains at 0.50 [0.49, 0.51] of full_ram, and is 2.50 [2.50, 2.50] times as fast as "
        "mapped_table and 2.50 [2.50, 2.50] times as fast as rocksdb_table in the embedding step alone; at 1 GiB "
        f"{OURS} trains at 0.95 [0.93, 0.97] of full_ram, and is 5.00 [5.00, 5.00] times as fast as mapped_table and "
        "2.50 [2.50, 2.50] times as fast as rocksdb_table in the embedding step alone."
    )


def test_the_fastest_is_named_though_it_is_a_rival():
    assert verdict_of(contest(ours=(0.3, 0.25))) == (
        "At 1 GiB rocksdb_table trains at 0.50 [0.49, 0.51] of full_ram, and is 2.00 [2.00, 2.00] times as fast as "
        "mapped_table in the embedding step alone."
    )


def test_noise_widens_what_is_said():
    noisy = on_drive("full_ram", 1.2, alone=1.0, offloads=False)  # its repeat is a fifth faster in the whole step
    said = verdict_of(noisy, [*on_drive(OURS, 0.95), *on_drive("mapped_table", 0.85)])
    assert said == (
        f"At 1 GiB {OURS} trains at 1.0 [0.8, 1.1] of full_ram, and is 1.1 [0.9, 1.3] times as fast as "
        "mapped_table in the whole DLRM step."
    )


def test_systems_that_raced_apart_are_compared_through_full_ram():
    said = verdict_of(raced_apart(contest()))
    assert "mapped_table (through full_ram) and 2.50 [2.44, 2.56] times as fast as rocksdb_table (through" in said


def test_one_build_has_no_interval_and_says_so():
    runs = contest(seeds=1)
    whole, alone = disk_tables(group_records(runs))
    assert table(whole)["1 GiB", OURS]["vs full_ram"] == "0.95 [n/a]"
    assert table(alone)["1 GiB", OURS]["vs mapped_table"] == "5.00 [n/a]"
    assert "trains at 0.95 [n/a] of full_ram, and is 5.00 [n/a] times as fast as mapped_table" in verdict_of(runs)


def test_what_has_no_ok_cell_is_said_with_its_reason():
    failed = on_drive(OURS, 1.0, budget=512 * MIB, status=Status.INFEASIBLE, reason="needs 600 MiB.", phase="build")
    without = [run for run in contest(512 * MIB) if run.cell.system not in (OURS, "mapped_table")]
    said = verdict_of(contest(), without, failed)
    assert said.startswith("At 512 MiB rocksdb_table trains at 0.50 [0.49, 0.51] of full_ram")
    first, _ = disk_tables(group_records([*contest(), *without, *failed]))
    assert f"512 MiB, {OURS}: infeasible in phase build: needs 600 MiB." in first.notes


def test_speed_is_absolute_where_full_ram_was_not_measured():
    runs = [
        run.model_copy(
            update={"turns": run.turns.model_copy(update={"baseline_s": None, "baseline_embedding_s": None})}
        )
        for run in contest()[3:]
    ]
    oom = on_drive("full_ram", 1.0, status=Status.OOM_HOST, reason="needs 17 GB", phase="build")
    assert verdict_of(runs, oom).startswith(f"At 1 GiB {OURS} trains at 9,500 samples/s, and is 5.00 [5.00, ")
    assert verdict_of(full_ram()) == "Nothing can be said: no system beside full_ram ended ok and was timed."


def test_unverified_wrong_and_straying_systems_are_not_chosen():
    wrong = on_drive(OURS, 0.95, alone=0.5, status=Status.WRONG_ANSWER, reason="rows differ", phase="verify")
    said = verdict_of(full_ram(), wrong, on_drive("rocksdb_table", 0.5, alone=0.2))
    assert said.startswith("At 1 GiB rocksdb_table trains at")
    assert said.endswith(f"; do not use {OURS}: wrong answers.")
    astray = on_drive("freq_cache[tier=file]", 0.99, alone=0.9, auroc=0.70)
    said = verdict_of(contest(), astray)
    assert said.startswith(f"At 1 GiB {OURS} trains at")
    assert "do not choose freq_cache[tier=file] by speed: its AUROC is 0.7000 where that of full_ram is 0.7911" in said


def test_a_pace_alone_is_none_of_a_cell_on_a_drive_and_interrupted_turns_are_not_ranked():
    """Its cell trains a few steps, before its rows have come to rest."""
    apart = on_drive(OURS, 0.95, alone=0.5, alone_steps_per_s=5.0)
    (first, _) = disk_tables(group_records([*full_ram(), *apart]))
    assert OURS in first.summary and not [note for note in first.notes if "alone" in note]
    cut = [
        one.model_copy(update={"cell": one.cell.model_copy(update={"builds": 2})})
        for one in [*full_ram(), *on_drive(OURS, 0.95, alone=0.5)]
    ]
    (first, _) = disk_tables(group_records(cut))
    assert first.summary == f"At 1 GiB the turns of {OURS} were interrupted, see the notes."
