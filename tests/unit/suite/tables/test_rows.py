import statistics

import pytest

from suite.records.groups import RecordGroup, group_records
from suite.records.measured import Times
from suite.records.record import Record, Status
from suite.tables.columns import AUROC
from suite.tables.rows import Row, baseline_repeat, merged_rows
from suite.tables.verdict import verdict
from tests.unit.suite.fabricate import BASELINE, cpu_run, gpu_run, optimum, record, verification


def only_group(records: list[Record]) -> RecordGroup:
    (group,) = group_records(records)
    return group


def row_of(records: list[Record], system: str = "a") -> Row:
    return next(row for row in merged_rows(only_group(records)) if row.system == system)


def test_speeds_and_ratios_that_a_table_prints_agree() -> None:
    rows = {row.system: row for row in merged_rows(only_group(gpu_run()))}
    baseline = rows["full_gpu"]
    assert (baseline.ratio.value, baseline.ratio.low, baseline.builds) == (1.0, None, 9)
    assert (baseline.steps_per_s, baseline.numbers["way"]) == (pytest.approx(100), "one process")
    for row in rows.values():
        if row.status is Status.OK:
            assert row.steps_per_s / baseline.steps_per_s == pytest.approx(row.ratio.value, rel=1e-12)
            assert row.samples_per_s == pytest.approx(16_384 * row.steps_per_s)
            assert row.numbers["epoch_s"] == pytest.approx(39_291_954 / row.samples_per_s)


def test_repeat_of_the_baseline_gives_the_noise_floor() -> None:
    group = only_group(gpu_run())
    rows, again = merged_rows(group), baseline_repeat(group)
    assert [row.system for row in rows[:2]] == ["reference", "full_gpu"]
    assert (again.system, again.auroc) == ("full_gpu (again)", None)
    assert again.records == rows[1].records == group.rounds_by_system["full_gpu"]
    assert again.ratio.value == pytest.approx(1)
    assert [row.noise for row in rows] == [pytest.approx(again.ratio.high - 1, rel=0.02)] * len(rows)
    assert row_of([record("a")]).noise is None


def test_system_that_computes_as_another_has_all_but_a_speed() -> None:
    row = row_of(cpu_run(), "fbgemm_uvm")
    assert (row.same_kernel_as, row.steps_per_s, row.ratio) == ("full_gpu", None, None)
    assert (row.auroc, row.numbers["prior_knowledge"], row.builds) == (pytest.approx(0.7911), "nothing", 0)
    # where that system does not run, this one is timed
    timed = record("a")
    measurement = timed.measurement.model_copy(update={"same_kernel_as": "full_gpu"})
    row = row_of([timed.model_copy(update={"measurement": measurement})])
    assert (row.same_kernel_as, row.steps_per_s) == (None, pytest.approx(50))


def test_rounds_merge_into_means_the_largest_peak_and_the_first_ones_traffic() -> None:
    runs = [
        record("a", round=number, allocated_bytes=peak, auroc=0.79 + number / 100) for number, peak in ((0, 5), (1, 9))
    ]
    line = row_of(runs).line()
    assert (line["auroc"], line["accuracy"]) == (pytest.approx(0.795), pytest.approx(0.7825))
    tiers = (line["device_allocated_bytes"], line["host_tier_bytes"], line["disk_tier_bytes"])
    assert tiers == (9, 17_000_000_000, None)
    assert (line["unique_ids"], line["hit_rate"]) == (1_000_000, pytest.approx(0.95))
    assert line["fetched_bytes_per_step"] == pytest.approx(2_580_000)
    assert "unique_ids" not in row_of(runs[1:]).line()


@pytest.mark.parametrize(
    ("share", "note"), [(0.019, ""), (0.034, "up to 3.4 % of its turns went by waiting for batches")]
)
def test_waiting_for_batches_is_a_note_above_two_per_cent(share: float, note: str) -> None:
    waited = share * sum(map(sum, record("a").turns.system_s))
    notes = row_of([record("a", timed={"data_wait_s": waited})]).notes
    assert [one[: len(note)] for one in notes] == ([note] if note else [])


def test_worst_round_names_the_row_and_a_wrong_one_takes_its_numbers() -> None:
    runs = [
        record("a"),
        record("a", round=1, status=Status.TIMEOUT, reason="slow"),
        record("a", round=2, status=Status.CRASHED, reason="boom"),
    ]
    row = row_of(runs)
    assert (row.status, row.reason, row.auroc) == (Status.CRASHED, "boom", 0.7911)
    assert "numbers come from 1 of 3 rounds" in row.notes
    row = row_of([*runs, record("a", round=3, status=Status.WRONG_ANSWER)])
    assert (row.steps_per_s, row.auroc, row.status) == (None, None, Status.WRONG_ANSWER)


def test_system_that_crashed_in_its_turns_keeps_what_it_measured_before() -> None:
    row = row_of([record("a", status=Status.CRASHED, phase="turns")])
    assert (row.auroc, row.numbers["hit_rate"], row.steps_per_s) == (pytest.approx(0.7911), pytest.approx(0.95), None)


@pytest.mark.parametrize(
    ("aurocs", "shown"),
    [([0.68612], "0.686"), ([0.66, 0.70, 0.70], "0.69"), ([0.7915, 0.7911, 0.7913], "0.7913"), ([0.7911] * 3, "0.791")],
)
def test_score_has_no_digit_behind_the_first_that_seeds_move(aurocs: list[float], shown: str) -> None:
    line = row_of([record("a", round=number, auroc=auroc) for number, auroc in enumerate(aurocs)]).line()
    assert AUROC.cell(line) == shown


@pytest.mark.parametrize(
    ("checked", "word"),
    [
        (verification(), "bitwise"),
        (verification(difference=3e-7, tolerance=1e-6), "within 3e-07"),
        (verification(difference=1e-3, tolerance=1e-6, passed=False), "no"),
        (None, "no"),
    ],
)
def test_verification_says_how_close(checked: object, word: str) -> None:
    assert row_of([record("a").model_copy(update={"verification": checked})]).verified == word


def paced(system: str, *, speed: float = 1.0, alone: float | None = 1.0, beside: float | None = 1.0) -> Record:
    """A record of so many times the baseline's pace in turns; alone both have so many times their own."""
    plain = record(system, samples_per_s=speed * BASELINE, noise=0.001)
    assert plain.turns is not None
    times, beside_it = plain.turns.system_s, plain.turns.baseline_s
    assert beside_it is not None
    paces = {"alone_s": alone and usual(times, alone), "baseline_alone_s": beside and usual(beside_it, beside)}
    return plain.model_copy(update={"turns": plain.turns.model_copy(update=paces)})


def usual(times: Times, pace: float) -> Times:
    """Four runs alone of every build, at so many times the pace of its turns."""
    return tuple((statistics.median(build) / pace,) * 4 for build in times)


@pytest.mark.parametrize(
    ("alone", "beside", "noted"),
    [
        (1.0, 1.0, ""),
        (1.04, 0.96, ""),
        (0.88, 1.0, "a: 100 it/s in turns, 88 alone"),
        (1.2, 1.0, "a: 100 it/s in turns, 120 alone"),
        (1.0, 1.1, "full_gpu beside it: 100 it/s in turns, 110 alone"),
        (None, None, ""),
    ],
)
def test_pace_in_turns_that_is_not_the_pace_alone_is_noted_and_no_verdict_uses_it(
    alone: float | None, beside: float | None, noted: str
) -> None:
    runs = [record("full_gpu"), paced("a", alone=alone, beside=beside)]
    row = row_of(runs)
    assert row.apart == noted
    assert any(note.startswith(f"{noted}: they differ") for note in row.notes) == bool(noted)
    silent = "othing can be said of a: paces alone and in turns differ"
    assert (silent in verdict(only_group(runs))) == bool(noted)
    fast = paced("a", speed=2.0, alone=alone, beside=beside)
    slow = [record(name, samples_per_s=BASELINE, noise=0.001) for name in ("b", "c")]
    said = verdict(only_group([record("full_gpu"), fast, *slow]))
    assert ("fastest of those that offload: a" in said) != bool(noted)


def test_no_verdict_uses_turns_that_were_interrupted() -> None:
    whole = [record(name, samples_per_s=BASELINE, noise=0.001) for name in ("full_gpu", "b", "c")]
    fast = record("a", samples_per_s=2 * BASELINE, noise=0.001)
    assert fast.turns is not None
    stopped = fast.model_copy(update={"turns": fast.turns.model_copy(update={"system_s": fast.turns.system_s[:2]})})
    said = verdict(only_group([*whole, stopped]))
    assert "nothing can be said of a: turns were interrupted" in said
    assert "fastest of those that offload: b and c" in said


def test_system_is_compared_with_the_plain_table_of_its_own_kernel() -> None:
    runs = [
        record("reference", samples_per_s=BASELINE / 2),
        record("full_gpu"),
        record("colossalai_cache", samples_per_s=BASELINE / 4, plain_table="reference"),
        record("freq_cache", samples_per_s=BASELINE / 4),
    ]
    found = {row.system: row.numbers["kernel_ratio"] for row in merged_rows(only_group(runs))}
    assert {name: round(ratio.value, 3) for name, ratio in found.items()} == {
        "reference": 0.5, "full_gpu": 1.0, "colossalai_cache": 0.5, "freq_cache": 0.25,
    }  # fmt: skip
    assert row_of(runs[1:], "colossalai_cache").numbers["kernel_ratio"] is None


def test_misses_and_bytes_are_relative_to_the_least_possible_in_the_round_that_was_counted() -> None:
    row = row_of([record("a", least=optimum()), record("a", round=1)])
    assert (row.numbers["misses_over_optimum"], row.numbers["bytes_over_minimum"]) == pytest.approx((1.25, 1.25))
