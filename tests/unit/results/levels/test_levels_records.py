"""What docs/disk.md says of rows on a drive is what its records say."""

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rocksdb_values

from suite.records.groups import group_records
from suite.records.record import Record, Status
from suite.records.store import RecordStore
from suite.tables.disk import Step, rows_on_drive
from workloads.schema import SCHEMAS

ROOT = Path(__file__).resolve().parents[4]
THREE, TWO = "freq_cache[look_ahead=4,tier=file]", "freq_cache[levels=2,look_ahead=4,tier=file]"
PAGE = (ROOT / "docs" / "disk.md").read_text()
SAID = " ".join(PAGE.split())
SIMULATED = [json.loads(path.read_text()) for path in sorted((ROOT / "results/simulate/ram_level").glob("*.json"))]


def records_of(folder: str) -> list[Record]:
    records, problems = RecordStore(ROOT / "results" / folder).load_all()
    assert not problems
    return records


@pytest.mark.parametrize("folder", ["disk", "levels"])
def test_every_row_of_the_page_is_that_of_the_records(folder: str) -> None:
    records = records_of(folder)
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
    groups = group_records(records_of("levels"))
    whole, alone = ({line["system"]: line for line in rows_on_drive(groups, step)} for step in Step)
    reads = [whole[name]["rows_read"] for name in (THREE, TWO)]
    assert reads[0] <= 1.15 * reads[1]
    assert whole[THREE]["ratio"].value >= 0.95 * whole[TWO]["ratio"].value
    assert f"{reads[0]:.2f} rows per sample with three levels and {reads[1]:.2f} with two" in SAID
    over = (alone[THREE][f"over_{rival}"] for rival in ("mapped_table", "rocksdb_table"))
    said = (f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}] times as fast as" for one in over)
    ours = "our cache is {} the mapped table, which moves whole pages both ways, and {} RocksDB;"
    assert ours.format(*said) in SAID


def test_at_two_gibibytes_the_mapped_table_met_ours_in_turns_of_their_own() -> None:
    records = records_of("levels/pair")
    assert {record.cell.setting for record in records} == {record.cell.setting for record in records_of("levels")}
    contests = {(record.cell.round, record.turns and record.turns.contest) for record in records}
    assert (len(records), len(contests)) == (6, 3)
    lines = {line["system"]: line for line in rows_on_drive(group_records(records), Step.EMBEDDING)}
    assert lines.keys() == {THREE, "mapped_table"}
    found = lines[THREE]["over_mapped_table"]
    runs = [group_records([record for record in records if record.cell.round == run]) for run in range(3)]
    by_run = [{line["system"]: line for line in rows_on_drive(run, Step.EMBEDDING)} for run in runs]
    first, second, third = (run[THREE]["over_mapped_table"].value for run in by_run)
    said = "in [turns of these two alone](../results/levels/pair) (the command of three levels at `--scale full`, with "
    said += f"`--systems` of these) it was {found.value:.2f} [{found.low:.2f}, "
    said += f"{found.high:.2f}] times as fast: {first:.1f}, {second:.1f} and {third:.1f} times in three runs"
    assert said in SAID
    slow = [seconds for record in records for seconds in _slow_spells(record)]
    assert slow == [(THREE, 2)] * len(slow)
    assert f"In the third, {len(slow)} of our 12 embedding turns took more than four times as long as its usual" in SAID
    (mapped,) = (one.turns for one in records if (one.cell.system, one.cell.round) == ("mapped_table", 2))
    assert mapped is not None and mapped.embedding_s is not None
    for blocks in (mapped.system_s, mapped.embedding_s):  # it slowed down too
        assert statistics.median(blocks[-1]) > 1.4 * statistics.median(blocks[0])


def _slow_spells(record: Record) -> list[tuple[str, int]]:
    """System and round, for each embedding turn that took more than four times as long as the system's median one."""
    assert record.turns is not None and record.turns.embedding_s is not None
    seconds = [turn for block in record.turns.embedding_s for turn in block]
    return [(record.cell.system, record.cell.round)] * sum(one > 4 * statistics.median(seconds) for one in seconds)


def test_without_look_ahead_and_frequencies_it_is_as_far_from_rocksdb_as_the_page_says() -> None:
    lines = rows_on_drive(group_records(records_of("disk")), Step.EMBEDDING)
    alone = {line["system"]: line["over_rocksdb_table"] for line in lines}
    known, unknown = (alone[f"freq_cache[{choice}tier=file]"] for choice in ("", "policy=lfu,"))
    said = (f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in (known, unknown))
    assert "{} and {} times as fast as RocksDB's".format(*said) in SAID


def test_the_page_says_who_took_turns_with_whom_and_how_often() -> None:
    plain, past = "freq_cache[tier=file]", "freq_cache[policy=lfu,tier=file]"
    expected = {
        "disk": [{"full_ram", THREE, "mapped_table"}, {plain, "rocksdb_table"}, {past}],
        "levels": [{"full_ram", THREE, "rocksdb_table"}, {"mapped_table"}, {TWO}],
    }
    for folder, groups in expected.items():
        runs: dict[int, dict[str, set[str]]] = {}
        for record in records_of(folder):
            assert record.turns is not None
            runs.setdefault(record.cell.round, {}).setdefault(record.turns.contest, set()).add(record.cell.system)
        assert [sorted(map(sorted, met.values())) for met in runs.values()] == [sorted(map(sorted, groups))] * 3
    assert "Three runs at each budget, over which intervals are." in SAID


def test_the_page_says_how_fast_the_drive_was_and_nothing_disturbed_the_turns() -> None:
    records = [record for folder in ("disk", "levels", "levels/pair") for record in records_of(folder)]
    drives = [record.measurement.drive for record in records if record.measurement and record.measurement.drive]
    one, many = ([getattr(drive, f"reads_per_s_depth_{depth}") / 1e3 for drive in drives] for depth in (1, 32))
    rates = (
        f"{min(one):.0f} to {max(one):.0f} k reads/s at depth 1 and {min(many):.0f} to {max(many):.0f} k at depth 32"
    )
    assert rates in SAID
    assert [record.cell.system for record in records if record.disturbed] == []
    shares = [record.conditions.others_cpu_share for record in records if record.conditions is not None]
    assert len(shares) == len(records)
    assert f"they had at most {100 * max(filter(None, shares)):.1f} % of the cores" in SAID
    pace = {}
    for folder in ("disk", "levels"):
        lines = rows_on_drive(group_records(records_of(folder)), Step.WHOLE)
        (pace[folder],) = (line["samples_per_s"] for line in lines if line["system"] == "full_ram")
    assert f"trained {pace['disk']:,.0f} samples a second beside those of 1 GiB, {pace['levels']:,.0f} beside" in SAID


def blocks_of(folder: str, system: str) -> list[float]:
    """Speed of the embedding step relative to `full_ram` by block of turns: medians of each, means of the rounds."""
    runs = [record.turns for record in records_of(folder) if record.cell.system == system]
    found = []
    for turns in runs:
        assert turns is not None and turns.embedding_s is not None and turns.baseline_embedding_s is not None
        blocks = zip(turns.embedding_s, turns.baseline_embedding_s, strict=True)
        found.append([statistics.median(math.log(b / a) for a, b in zip(*block, strict=True)) for block in blocks])
    return [math.exp(statistics.mean(block)) for block in zip(*found, strict=True)]


def test_embedding_step_of_ours_became_slower_at_one_gibibyte_alone() -> None:
    plain, ahead = (blocks_of("disk", name) for name in ("freq_cache[tier=file]", THREE))
    words = "from {:.2f} to {:.2f} of `full_ram`, with look-ahead from {:.2f} to {:.2f}"
    assert words.format(plain[0], plain[-1], ahead[0], ahead[-1]) in SAID
    others = [("disk", "mapped_table"), ("disk", "rocksdb_table"), ("disk", "freq_cache[policy=lfu,tier=file]")]
    others += [("levels", name) for name in (THREE, TWO, "mapped_table", "rocksdb_table")]
    for folder, name in others:
        first, *_, last = blocks_of(folder, name)
        assert last > (0.85 if name == "mapped_table" else 0.95) * first, (folder, name)


def test_rocksdb_with_several_rows_a_value_took_longer() -> None:
    found = json.loads((ROOT / "results" / "disk" / "rocksdb_values.json").read_text())
    assert found["rows"] * found["row_bytes"] > 8 * found["memory_bytes"]
    times = found["of_one_row"]
    for name, passes in found["batches"].items():
        pairs = zip(passes, found["batches"]["1 row"], strict=True)
        assert times[name] == pytest.approx(statistics.geometric_mean(one["ms"] / base["ms"] for one, base in pairs))
    said = (
        "took {:.2f} of the time with keys in the order of frequency, {:.1f} times with 8 rows of neighbouring rank a "
    )
    said += "value and {:.1f} times with 64"
    assert said.format(*(times[name] for name in ("1 row, by rank", "8 rows, by rank", "64 rows, by rank"))) in SAID
    counts = f"{found['memory_bytes'] >> 20} MiB, {found['timed_batches']} batches, twice"
    assert counts in SAID
    assert {len(passes) for passes in found["batches"].values()} == {2}


def test_rocksdb_with_several_rows_a_value_is_measured_by_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(rocksdb_values.SCALE, max_rows=20_000, batch_size=128)
    for name, value in {"SCALE": small, "MEMORY_BYTES": 4 << 20, "STEPS": 1, "TIMED": 2, "PASSES": 2}.items():
        monkeypatch.setattr(rocksdb_values, name, value)
    monkeypatch.setattr("sys.argv", ["rocksdb_values.py", "--out", str(tmp_path / "found.json")])
    rocksdb_values.main()
    batches = json.loads((tmp_path / "found.json").read_text())["batches"]
    assert set(batches) == set(rocksdb_values.VARIANTS)
    for passes in batches.values():
        assert all(one["ms"] >= one["reading_ms"] > 0.0 for one in passes)


def test_what_look_ahead_and_slots_take_is_in_the_records() -> None:
    three = next(record for record in records_of("levels") if record.cell.system == THREE)
    assert three.measurement is not None
    rows = sum(rows for _, rows in SCHEMAS["criteo_kaggle"].categorical)
    slots = three.measurement.memory.anatomy_bytes["device/rows"] / (4 * three.cell.embedding_dim)
    assert f"slots of {100 * slots / rows:.1f} % of the rows" in SAID
    assert f"12 bytes a row whatever the budget: {12 * rows / 1e6:.0f} MB of {rows / 1e6:.1f} million rows" in SAID
    assert round(12 * rows / (512 << 20), 2) == 0.75
    assert "At 512 MiB that is three quarters of the budget." in SAID


def misses(record: dict[str, Any], policy: str) -> int:
    (row,) = (row for row in record["rows"] if row["policy"] == policy)
    return int(row["traffic"]["unique_misses"])


@pytest.mark.parametrize("policy", ["static", "lfu", "lru"])
def test_the_page_says_what_the_drive_gives_beside_two_levels_of_the_same_rows(policy: str) -> None:
    assert len(SIMULATED) == 3
    plain = f"freq_cache[policy={policy}]"
    ratios = [misses(one, plain.replace("]", ",ram=3]")) / misses(one, plain) for one in SIMULATED]
    assert max(ratios) <= 1.15
    assert re.search(rf"{min(ratios):.2f} to {max(ratios):.2f} times[^`]*with `{policy}`", SAID)


def test_the_page_says_what_the_best_rule_would_miss() -> None:
    ratios = [one["rows"][0]["least"]["unique_misses"] / misses(one, "freq_cache[policy=static]") for one in SIMULATED]
    assert f"is at {min(ratios):.2f} to {max(ratios):.2f} of `static`" in SAID
