"""Systems of a setting are compared in the rows that their cells read back: one wrong row of 4,096 is found."""

import math

import numpy as np
import pytest

from suite.records.record import Check, Status, Verification
from suite.run.agreement import compared, largest_difference, path_of, same_arithmetic
from suite.run.cell.experiment import run_cell
from suite.run.worker import Reporter, RunCell
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import environment, record

ROWS, DIM = 4096, 16
ON_CPU = {"device": "cpu", "optimizer": "sgd", "lr": 1.0}
BITWISE = Verification(checks=(Check(name="sgd: losses", passed=True, max_difference=0.0, tolerance=0.0),))


def sample(*, seed=0):
    """Rows of two tables; a quarter was never trained on, the others moved by something like 1e-4."""
    generator = np.random.default_rng(seed)
    found = {"table": np.repeat(["a", "b"], ROWS // 2), "id": generator.permutation(10 * ROWS)[:ROWS]}
    for moment in ("early", "late"):
        moved = np.where(np.arange(ROWS) % 4 == 3, 0, generator.lognormal(-9, 1, ROWS))
        found[f"{moment}/weight"] = generator.uniform(-0.01, 0.01, (ROWS, DIM)).astype(np.float32)
        found[f"{moment}/moved"] = moved.astype(np.float32)
        found[f"{moment}/sum"] = (moved**2).astype(np.float32)
    return found


def changed(rows, name, place, by):
    """A copy in which one row of one array is changed."""
    values = rows[name].copy()
    values[place] = values[place] + by
    return {**rows, name: values}


@pytest.mark.parametrize("moment", ["early", "late"])
def test_last_bit_of_one_number_in_one_row_is_found_where_all_must_be_equal(moment):
    rows = sample()
    one = rows[f"{moment}/weight"][3000, 3]
    by = np.zeros(DIM, np.float32)
    by[3] = np.spacing(one)
    difference, where = largest_difference(changed(rows, f"{moment}/weight", 3000, by), rows, bitwise=True)
    assert difference == pytest.approx(abs(np.spacing(one)))
    assert where == f"row {rows['id'][3000]} of b" + (", early" if moment == "early" else "")


def test_where_bits_may_differ_a_lost_update_is_as_large_as_the_move_and_rounding_is_small():
    rows = sample()
    moved = rows["early/moved"]
    place = int(np.flatnonzero(moved >= np.median(moved[moved > 0]))[0])
    back = -moved[place] / math.sqrt(DIM)
    rounded = {**rows, "early/weight": rows["early/weight"] + np.float32(1e-9) * (moved > 0)[:, None]}
    assert largest_difference(rounded, rows, bitwise=False)[0] < 0.002
    difference, where = largest_difference(changed(rounded, "early/weight", place, back), rows, bitwise=False)
    assert 0.8 < difference < 1
    assert where == f"row {rows['id'][place]} of a, early"
    place = int(rows["early/sum"].argmax())
    lost = changed(rows, "early/sum", place, -rows["early/sum"][place])
    difference, where = largest_difference(lost, rows, bitwise=False)
    assert difference > 0.9
    assert where == f"row {rows['id'][place]} of {rows['table'][place]}, its sum, early"
    assert largest_difference(changed(rows, "early/weight", 7, 1e-4), rows, bitwise=False)[0] > 1  # never trained
    later = {**rows, "late/weight": rows["late/weight"] + 1}  # after many steps rounding may have moved rows anywhere
    assert largest_difference(later, rows, bitwise=False) == (0.0, "")


@pytest.mark.parametrize("bitwise", [True, False])
def test_nan_and_other_rows_are_infinitely_far_away(bitwise):
    rows = sample()
    assert largest_difference(changed(rows, "early/weight", 3, math.nan), rows, bitwise=bitwise)[0] == math.inf
    assert largest_difference(changed(rows, "id", 3, 1), rows, bitwise=bitwise)[0] == math.inf
    assert largest_difference({**rows, "early/more": rows["early/sum"]}, rows, bitwise=bitwise)[0] == math.inf


def kept(out, system, rows, **setting):
    """A record that is `ok`, with its rows beside it; None: without."""
    made = record(system, setting={**ON_CPU, **setting}, checked=BITWISE)
    if rows is not None:
        path_of(out, made.key).parent.mkdir(exist_ok=True)
        np.savez(path_of(out, made.key), **rows)
    return made


def test_systems_that_agree_keep_a_check_that_says_with_whom_and_nothing_changes_again(tmp_path):
    records = [kept(tmp_path, name, sample()) for name in ("freq_cache", "full_gpu", "reference")]
    after = compared(records, tmp_path)
    assert [one.cell.system for one in after] == ["freq_cache", "full_gpu"]
    for one in after:
        assert one.status is Status.OK
        check = one.verification.checks[-1]
        assert (check.name, check.passed) == ("rows after training, beside reference", True)
        assert (check.max_difference, check.tolerance) == (0.0, 0.0)
    for one in after:  # needed no more
        path_of(tmp_path, one.key).unlink()
    assert compared([*after, records[2]], tmp_path) == []
    late = kept(tmp_path, "hot_split", changed(sample(), "early/weight", 7, 1e-8))
    (found,) = compared([*after, late, records[2]], tmp_path)
    assert (found.cell.system, found.status) == ("hot_split", Status.WRONG_ANSWER)


def test_on_a_cuda_device_an_update_of_three_that_is_lost_is_a_wrong_answer_and_the_order_of_sums_is_none(tmp_path):
    rows = sample()
    place = int(np.flatnonzero(rows["early/moved"] >= 3 * np.median(rows["early/moved"][rows["early/moved"] > 0]))[0])
    records = []
    for name, lost in (("full_gpu", 0.0), ("freq_cache", 0.1), ("hot_split", 0.3)):
        by = -lost * rows["early/moved"][place] / math.sqrt(DIM)
        records.append(kept(tmp_path, name, changed(rows, "early/weight", place, by), device="cuda"))
    after = {one.cell.system: one for one in compared(records, tmp_path)}
    assert after["freq_cache"].status is Status.OK
    assert after["hot_split"].status is Status.WRONG_ANSWER


def test_one_wrong_row_makes_a_wrong_answer_of_its_system_alone(tmp_path):
    wrong = kept(tmp_path, "freq_cache", changed(sample(), "early/weight", 7, 1e-8))
    records = [wrong, *(kept(tmp_path, name, sample()) for name in ("full_gpu", "reference"))]
    (after, other) = compared(records, tmp_path)
    assert (after.status, after.phase, after.measurement, after.turns) == (Status.WRONG_ANSWER, "rows", None, None)
    assert not after.verification.passed
    row = sample()["id"][7]
    assert after.reason.startswith(f"row {row} of a, early: differs by ")
    assert after.reason.endswith(", allowed 0, beside reference")
    assert other.status is Status.OK


def test_rows_that_are_gone_or_damaged_are_noted_once_and_no_failure(tmp_path):
    records = [kept(tmp_path, name, rows) for name, rows in (("full_gpu", sample()), ("freq_cache", None))]
    records.append(kept(tmp_path, "reference", None))
    path_of(tmp_path, records[2].key).write_bytes(b"PK no zip file")
    after = compared(records, tmp_path)
    assert [one.cell.system for one in after] == ["full_gpu", "freq_cache", "reference"]
    assert all(one.status is Status.OK and "its rows after training were not compared" in one.notes[0] for one in after)
    assert compared(after, tmp_path) == []


def test_systems_that_are_not_exact_failed_or_alone_are_not_compared(tmp_path):
    coarse = kept(tmp_path, "freq_cache[slow_rows=int8]", sample(seed=1))
    coarse = coarse.model_copy(update={"measurement": coarse.measurement.model_copy(update={"exact": False})})
    failed = record("hot_split", status=Status.CRASHED, setting=ON_CPU)
    assert compared([kept(tmp_path, "full_gpu", sample()), coarse, failed], tmp_path) == []


def test_bits_must_be_equal_with_sgd_on_a_cpu_alone_and_beside_the_reference_where_no_step_is_rounded(tmp_path):
    close = changed(sample(), "early/weight", 8, 1e-9)
    for setting, passes in (({}, False), ({"lr": 0.5}, False), ({"lr": 0.3}, True), ({"optimizer": "adam"}, True)):
        pair = [kept(tmp_path, "reference", sample(), **setting), kept(tmp_path, "full_gpu", close, **setting)]
        assert (compared(pair, tmp_path)[0].status is Status.OK) == passes
    one, other = kept(tmp_path, "full_gpu", None), kept(tmp_path, "freq_cache", None, device="cuda")
    assert same_arithmetic(one, one)
    assert not same_arithmetic(one, other)


def trained(out, system, **setting):
    """The record of a cell that ran in this process."""
    cell = tiny_cell(system, **setting)
    key = f"{system}-{cell.setting}".replace(":", "-")
    blank = record(setting=ON_CPU).model_copy(update={"cell": cell, "key": key, "environment": environment(gpu=False)})
    outcome = run_cell(RunCell(cell=cell, rows=path_of(out, blank.key)), Reporter(None))
    assert outcome.status is Status.OK, outcome.reason
    return blank.model_copy(update={"verification": outcome.verification, "measurement": outcome.measurement})


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_real_systems_agree_and_one_that_loses_an_update_after_verification_is_found(tmp_path, optimizer):
    setting = {"optimizer": optimizer, "lr": 1.0 if optimizer == "sgd" else 0.01, "max_rows": 20_000, "train_steps": 6}
    systems = ("reference", "freq_cache[policy=lfu]", "tests.faults.wrong:LosesAnUpdate")
    after = compared([trained(tmp_path, system, **setting) for system in systems], tmp_path)
    assert {one.cell.system: one.status.value for one in after} == {
        "freq_cache[policy=lfu]": "ok", "tests.faults.wrong:LosesAnUpdate": "wrong_answer",
    }  # fmt: skip
    assert after[0].verification.checks[-1].max_difference < 1e-4


@pytest.mark.slow
def test_system_that_goes_wrong_above_two_to_the_sixteenth_rows_alone_is_found(tmp_path):
    setting = {"max_rows": 300_000, "optimizer": "rowwise_adagrad", "lr": 0.01}
    pair = [trained(tmp_path, system, **setting) for system in ("reference", "tests.faults.wrong:KeepsSixteenBits")]
    (after,) = compared(pair, tmp_path)
    assert (after.status, after.cell.system) == (Status.WRONG_ANSWER, pair[1].cell.system)
