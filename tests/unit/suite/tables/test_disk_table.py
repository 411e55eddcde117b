"""Rows on a drive: two tables per sweep of host budgets, and sentences that follow from them."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from suite.records.groups import group_records
from suite.records.status import Status
from suite.tables.comparison import comparison
from suite.tables.disk import Step, rows_on_drive
from suite.tables.disk_blocks import disk_blocks, disk_verdict
from suite.tables.settings import sweeps
from suite.tables.terminal import render
from tests.unit.suite.fabricate import BASELINE, record, rounds
from tests.unit.suite.tables.disk_scenes import GIB, MIB, OURS, contest, full_ram, on_drive

SMALL = {"max_rows": 4_000_000}


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
    heads = [head.words for head in block.heads]
    return {line.cells[:2]: dict(zip(heads, line.cells, strict=True)) for line in block.lines}


def test_budgets_of_a_sweep_stand_in_one_table_in_order():
    whole, alone = disk_blocks(group_records([*contest(GIB), *contest(512 * MIB)]))
    assert list(table(whole)) == [
        (budget, system)
        for budget in ("512 MiB", "1 GiB")
        for system in ("full_ram", OURS, "mapped_table", "rocksdb_table")
    ]
    assert list(table(alone)) == list(table(whole))
    assert max(len(block.heads) for block in (whole, alone)) == 10
    for line, head in ((line, head) for block in (whole, alone) for line in block.lines for head in block.heads):
        assert "full_gpu" not in (*line.cells, head.words)


def test_the_whole_step_shows_speed_reads_writes_and_memory_held():
    whole, _ = disk_blocks(group_records(contest()))
    ours, ram = table(whole)["1 GiB", OURS], table(whole)["1 GiB", "full_ram"]
    assert ours["samples/s"] == "9,500"
    # Student's interval of three rounds that lie 1 % apart
    low, high = (0.95 * math.exp(sign * 4.303 * 0.01 / math.sqrt(3)) for sign in (-1, 1))
    assert ours["vs full_ram"] == f"0.95 [{low:.2f}, {high:.2f}]"
    assert (ours["rows read per sample"], ours["kB read / written per sample"]) == ("8.00", "4.10 / 1.02")
    assert ours["memory held, % of budget"] == "99.0 %"
    assert (ram["vs full_ram"], ram["kB read / written per sample"], ram["memory held, % of budget"]) == (
        "1",
        "n/a",
        "n/a",
    )


def test_the_embedding_step_is_compared_with_rivals_the_drive_and_the_least_possible():
    _, alone = disk_blocks(group_records(contest()))
    found = table(alone)
    ours = found["1 GiB", OURS]
    assert (ours["embedding samples/s"], ours["vs full_ram"][:4]) == ("10,000", "0.50")
    assert (ours["vs mapped_table"], ours["vs rocksdb_table"]) == ("5.00 [5.00, 5.00]", "2.50 [2.50, 2.50]")
    assert found["1 GiB", "mapped_table"]["vs mapped_table"] == "1"
    # one block per sample of the 64,000 that the drive reads a second; eight rows of 512 bytes per sample
    whole, alone_rows = (rows_on_drive(group_records(contest()), step) for step in Step)
    row = next(row for row in alone_rows if row.row.system == OURS)
    total = row.reading["blocks_of_drive"] * 64_000
    assert total == pytest.approx(10_000, rel=0.05)  # all steps over all seconds of turns that are now slow, now fast
    assert row.reading["rows_of_drive"] == pytest.approx(8 * row.reading["blocks_of_drive"])
    assert (row.reading["over_blocks"], row.reading["over_packed"]) == pytest.approx((1 / 8, 1.0))
    mapped = next(row.reading for row in alone_rows if row.row.system == "mapped_table")
    assert mapped["rows_of_drive"] is None
    # it asks no file, so its misses are those of the counted steps: 50,000 in 10 steps of 1,000 samples
    assert (mapped["over_blocks"], mapped["over_packed"]) == pytest.approx((2.0, 16.0))
    assert {row.step for row in whole} == {"the whole DLRM step"}


def test_the_head_says_drive_memory_tables_and_what_intervals_are_over():
    first, _ = disk_blocks(group_records(contest(setting=SMALL)))
    facts = " | ".join(first.facts)
    assert "Rows: 31,250,000 in 26 tables, 128 floats each, 16.00 GB in all" in facts
    assert "Drive: ext4, random reads of 4,096 bytes past the page cache: 16,000/s at depth 1, 64,000/s" in facts
    assert "measured by fio 3.36" in facts
    assert "Memory held by: memory control group, version 2" in facts
    assert "Intervals: Student's, 95 %, over blocks of turns, 3 of a system in all rounds" in facts
    assert "outside any offload ranking" not in facts
    (without_baseline, _) = disk_blocks(group_records(contest(setting=SMALL)[3:]))
    assert "Rows: 4,000,000 in 26 tables" in " | ".join(without_baseline.facts)


def test_the_verdict_names_budget_share_of_ram_and_times_of_rivals():
    (said,) = verdict_of(contest())
    assert said == (
        f"At 1 GiB, 7 % of the rows' bytes, {OURS} trains at 0.92 to 0.98 of full_ram, and is 5.0 times as fast as "
        "mapped_table and 2.5 times as fast as rocksdb_table in the embedding step alone."
    )
    small, large = verdict_of(contest(), contest(512 * MIB, ours=(0.5, 0.25), rocksdb=(0.3, 0.1)))
    assert small.startswith(
        f"At 512 MiB, 3 % of the rows' bytes, {OURS} trains at 0.48 to 0.52 of full_ram, and is 2.5"
    )
    assert large == said


def test_what_noise_hides_is_too_close_to_call():
    noisy = on_drive("full_ram", 1.2, alone=1.0, offloads=False)  # its second copy is a fifth faster in the whole step
    others = [*on_drive(OURS, 0.95), *on_drive("mapped_table", 0.85)]
    said, near = verdict_of(noisy, others)
    assert said.endswith(f"{OURS} trains at 0.79 to 1.14 of full_ram, and is too close to call with mapped_table.")
    assert near == (
        "mapped_table may come within 10 % of the best: in the whole DLRM step at 1 GiB "
        f"({OURS} at 0.93 to 1.35 of its speed)."
    )


def test_a_rival_that_may_come_near_or_passes_is_named_with_the_place():
    (_, near) = verdict_of(contest(rocksdb=(0.9, 0.2)))
    assert near == (
        f"rocksdb_table may come within 10 % of the best: in the whole DLRM step at 1 GiB ({OURS} at 1.05 to 1.06 of "
        "its speed)."
    )
    said = verdict_of(contest(rocksdb=(0.5, 0.6)), contest(512 * MIB, rocksdb=(1.0, 0.52)))
    assert (
        f"rocksdb_table may come within 10 % of the best: in the whole DLRM step at 512 MiB ({OURS} at 0.95 of its "
        f"speed); in the embedding step alone at 512 MiB ({OURS} at 0.96 to 0.97 of its speed); in the embedding step "
        f"alone at 1 GiB ({OURS} at 0.83 to 0.84 of its speed)."
    ) in said


def test_systems_that_raced_apart_are_compared_through_full_ram():
    runs = raced_apart(contest())
    (said,) = verdict_of(runs)
    assert "times as fast as mapped_table and 2.4 to 2.6 times as fast as rocksdb_table in the embedding step" in said
    assert said.endswith("alone, through full_ram.")
    rows = rows_on_drive(group_records(runs), Step.EMBEDDING)
    assert {row.compared for row in rows} == {"through full_ram"}


def test_one_build_has_no_interval_and_says_so():
    runs = contest(seeds=1)
    whole, alone = disk_blocks(group_records(runs))
    assert "Intervals: none, for every ratio rests on one block of turns" in whole.facts
    assert table(whole)["1 GiB", OURS]["vs full_ram"] == "0.95 [n/a]"
    assert table(alone)["1 GiB", OURS]["vs mapped_table"] == "5.00 [n/a]"
    (said,) = verdict_of(runs)
    assert f"{OURS} trains at about 0.95 of full_ram, and is about 5.0 times as fast as mapped_table" in said


def test_what_has_no_ok_cell_is_said_with_its_reason():
    failed = on_drive(OURS, 1.0, budget=512 * MIB, status=Status.INFEASIBLE, reason="needs 600 MiB.", phase="build")
    without = [run for run in contest(512 * MIB) if run.cell.system not in (OURS, "mapped_table")]
    said = verdict_of(contest(), without, failed)
    assert said[0].startswith("At 512 MiB, 3 % of the rows' bytes, rocksdb_table trains at 0.48 to 0.52 of full_ram")
    first, _ = disk_blocks(group_records([*contest(), *without, *failed]))
    assert first.notes["Not measured"] == (f"512 MiB, {OURS}: infeasible in phase build: needs 600 MiB.",)


def test_nothing_is_said_beside_full_ram_where_it_was_not_measured():
    runs = [
        run.model_copy(
            update={"turns": run.turns.model_copy(update={"baseline_s": None, "baseline_embedding_s": None})}
        )
        for run in contest()[3:]
    ]
    oom = on_drive("full_ram", 1.0, status=Status.OOM_HOST, reason="needs 17 GB", phase="build")
    first, second, *_ = verdict_of(runs, oom)
    assert first.startswith(f"At 1 GiB, 6 % of the rows' bytes, {OURS} trains at 9,500 samples/s, and is 5.0 times as")
    assert second == "Nothing can be said beside full_ram: it did not take turns with the others."
    nobody = verdict_of(full_ram())
    assert nobody == ("Nothing can be said: no system beside full_ram ended ok and was timed.",)


def test_unverified_wrong_and_straying_systems_are_not_chosen():
    wrong = on_drive(OURS, 0.95, alone=0.5, status=Status.WRONG_ANSWER, reason="rows differ", phase="verify")
    said = verdict_of(full_ram(), wrong, on_drive("rocksdb_table", 0.5, alone=0.2))
    assert said[0].startswith("At 1 GiB, 7 % of the rows' bytes, rocksdb_table trains at")
    assert f"Do not use {OURS}: wrong answers." in said
    astray = on_drive("freq_cache[tier=file]", 0.99, alone=0.9, auroc=0.70)
    said = verdict_of(contest(), astray)
    assert said[0].startswith(f"At 1 GiB, 7 % of the rows' bytes, {OURS} trains at")
    assert (
        "Do not choose freq_cache[tier=file] by speed: its AUROC is 0.7000 where that of full_ram is 0.7911."
    ) in said


def test_without_turns_of_the_embedding_step_there_is_one_table():
    runs = [*on_drive("full_ram", 1.0), *on_drive(OURS, 0.9), *on_drive("mapped_table", 0.3)]
    (whole,) = disk_blocks(group_records(runs))
    (said,) = whole.verdict
    assert said.endswith(f"{OURS} trains at 0.87 to 0.93 of full_ram, and is 3.0 times as fast as mapped_table.")


def test_rows_on_a_drive_stand_behind_other_contests_which_stay_as_they_were():
    setting = {"device": "cpu", "cache_ratio": None, "device_budget_bytes": GIB}
    plain = [record("full_gpu", setting=setting), *rounds("freq_cache[tier=file]", [BASELINE / 2], setting=setting)]
    alone, both = (comparison(group_records(records)) for records in (plain, [*contest(), *plain]))
    for block, same in zip(alone.blocks, both.blocks, strict=False):
        assert (block.heading, block.facts, block.verdict) == (same.heading, same.facts, same.verdict)
        assert block.lines == same.lines
    assert len(both.blocks) == len(alone.blocks) + 2
    assert alone.frame["host_budget_bytes"].dropna().empty
    assert both.frame["host_budget_bytes"].dropna().unique().tolist() == [GIB]


@pytest.mark.parametrize("width", [120, 80])
def test_tables_fit_a_terminal_and_every_part_names_budget_and_system(width):
    text = io.StringIO()
    render(Console(file=text, width=width), group_records([*contest(), *contest(512 * MIB)]))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line.startswith("budget")]
    assert len(heads) == (2 if width == 120 else len(heads))
    assert all(line.split()[1] == "system" for line in heads)
    assert len([line for line in lines if line.split()[:3] == ["512", "MiB", "mapped_table"]]) == len(heads)
