"""torchrec's planner on our inputs and the published comparison; libCacheSim's misses are those of our models today."""

import json
from pathlib import Path

import independent_check
import pytest
import torchrec_planner

from suite.simulate.curves import divide_greedily, miss_curves
from suite.simulate.models.model import Span
from suite.simulate.options import open_trace
from suite.simulate.planner_inputs import planner_inputs

PLANNER_RECORD = Path(torchrec_planner.__file__).with_suffix(".json")
BATCH, SPAN = 1_024, Span(counted_from=15, stop=35)
DIM, MORE = 16, (2 << 20, 16 << 20)
"""Width of rows, and bytes of device memory beyond what the planner needs: 4 B per offloaded row, and the batch."""


def assert_claims(found):
    theirs, ours = found["torchrec"], found["ours"]
    assert theirs["expected_misses"] == pytest.approx(theirs["misses"], rel=0.05)
    assert ours["expected_misses"] == pytest.approx(ours["misses"], rel=0.05)
    assert sum(ours["slots"].values()) <= sum(theirs["slots"].values()) == found["slots"]
    assert 0 < ours["misses"] <= theirs["misses"]


@pytest.mark.slow
@pytest.mark.parametrize("workload", list(torchrec_planner.BUDGETS))
def test_the_planner_expects_what_its_caches_miss_and_our_division_misses_no_more(workload):
    trace = open_trace(workload=workload, scale="full", batch_size=BATCH)
    curves = miss_curves(trace, SPAN, per_table=True)
    slots = []
    for more in MORE:
        hbm = 4 * trace.rows + len(trace.tables) * BATCH * 2 * 4 * DIM + more
        found = torchrec_planner.compared(trace, curves, batch_size=BATCH, hbm_bytes=hbm, dim=DIM)
        assert_claims(found)
        slots.append(found["slots"])
        cached = [curve for curve in curves.tables if found["torchrec"]["slots"][curve.name] < curve.rows]
        assert cached
        assert any(found["torchrec"]["slots"][curve.name] > curve.largest_batch for curve in cached), "none was scaled"
    assert slots == sorted(set(slots)), "more memory, more slots"


@pytest.mark.slow
def test_the_planner_keeps_our_division_within_the_memory_of_its_own():
    trace = open_trace(workload="criteo_kaggle", scale="small", batch_size=BATCH)
    curves = miss_curves(trace, SPAN, per_table=True)
    theirs = torchrec_planner.proposed(planner_inputs(curves, batch_size=BATCH), hbm_bytes=60 << 20, dim=DIM)
    slots = sum(count for count, _ in theirs.values())
    inputs = planner_inputs(curves, batch_size=BATCH, slots=slots)
    ours = torchrec_planner.proposed(inputs, hbm_bytes=60 << 20, dim=DIM)
    given = divide_greedily(curves.tables, slots, resident=True)
    assert [count for count, _ in ours.values()] == pytest.approx(given, abs=1)
    assert sum(misses for _, misses in ours.values()) <= sum(misses for _, misses in theirs.values())


def test_the_published_comparison_bears_the_claims_out():
    record = json.loads(PLANNER_RECORD.read_text())
    assert record["results"].keys() == torchrec_planner.BUDGETS.keys()
    for workload, points in record["results"].items():
        assert len(points) == len(torchrec_planner.BUDGETS[workload])
        for found in points:
            assert_claims(found)


def test_the_program_leaves_its_record(tmp_path, capsys):
    small = ["--workloads", "avazu", "--scale", "smoke", "--batch-size", "64", "--batches", "9", "--budgets", "1MiB"]
    torchrec_planner.main([*small, "--dim", "8", "--out", str(tmp_path / "record.json")])
    assert "torchrec expects" in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "record.json").read_text())["results"]["avazu"]
    assert found["hbm_bytes"] == 1 << 20


RECORD = json.loads(Path(independent_check.__file__).with_suffix(".json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("stream", independent_check.STREAMS)
def test_our_misses_are_those_of_the_record_and_of_libcachesim(stream):
    points = [point for point in RECORD["points"] if point["stream"] == stream]
    assert len(points) == len(independent_check.POLICIES) * len(independent_check.SLOTS)
    counts = independent_check.ours(independent_check.stream(stream))
    for point in points:
        assert counts[point["policy"]][point["slots"]] == point["misses"]
        assert point["libcachesim_misses"] == point["misses"]
        assert point["misses"] < 0.99 * RECORD["accesses"]
