"""Some tables of a trace, and what fbgemm counted for them beside what was predicted."""

import json

import numpy as np
import pytest
from listed_traces import ListedTrace, setting
from test_curves import zipf_trace
from test_curves_command import run

from suite.records.command_line import BadOption
from suite.simulate.curves import miss_curves
from suite.simulate.models.fbgemm import FbgemmCacheModel, uvm_cache_stats
from suite.simulate.models.model import Span, replay
from suite.simulate.planner_inputs import CountedCache, CountedRun, beside

SIZES = [700, 30, 1_500]


@pytest.fixture(scope="module")
def trace():
    return zipf_trace(SIZES, batches=20, samples=90)


def chosen(trace, places):
    """The same tables alone, cut out by hand."""
    parts = [np.split(trace.ids(n).values, trace.ids(n).ends[:-1]) for n in range(trace.length)]
    return ListedTrace.of_ids([SIZES[place] for place in places], [[part[place] for place in places] for part in parts])


def test_counters_stand_beside_fbgemms_simulated_sets_and_the_curve(trace):
    real = uvm_cache_stats(
        replay(FbgemmCacheModel(setting(chosen(trace, (2, 0)), 320, 6), {"policy": "lru", "prefetch": "off"}))
    )
    stats = list(real.values())
    stats[3] += 7
    cache = CountedCache(tables=["t2", "t0"], slots=320, uvm_cache_stats=stats)
    ((_, rows),) = beside(trace, CountedRun(warmup_batches=6, counted_batches=14, caches=[cache]))
    assert [name for name, *_ in rows] == list(real)
    assert [simulated - counted for _, counted, simulated, _ in rows] == [0, 0, 0, -7, 0, 0]
    curve = miss_curves(chosen(trace, (2, 0)), Span(counted_from=6, stop=20)).pooled
    assert [by_curve for *_, by_curve in rows] == [None, curve.lookups, curve.unique_ids, curve.misses(320), None, None]


def test_a_run_longer_than_the_trace_or_of_other_tables_is_refused(trace):
    cache = CountedCache(tables=["t2"], slots=64, uvm_cache_stats=[0] * 6)
    with pytest.raises(BadOption, match="--counted: 21 batches were trained, listed has 20"):
        beside(trace, CountedRun(counted_batches=21, caches=[cache]))
    other = cache.model_copy(update={"tables": ["t2", "user"]})
    with pytest.raises(BadOption, match="listed has no table user: it has t0, t1, t2"):
        beside(trace, CountedRun(counted_batches=5, caches=[other]))


def test_the_command_prints_them(tmp_path):
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 500, (4_000, 3)))
    cache = {"tables": ["table_0", "table_2"], "slots": 320, "uvm_cache_stats": [30, 6_000, 5_500, 4_000, 0, 0]}
    (tmp_path / "counted.json").write_text(json.dumps({"counted_batches": 30, "caches": [cache]}))
    files = (str(tmp_path / name) for name in ("ids.npy", "counted.json"))
    arguments = ("--trace", next(files), "--batch-size", "100", "--counted", next(files))
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "320 slots of fbgemm's for 2 tables: table_0, table_2" in result.stdout
    (line,) = [line.split() for line in result.stdout.splitlines() if "num_requested_indices" in line]
    assert line[1:] == ["6,000", "6,000", "6,000", "+0"]
    cache["uvm_cache_stats"] = [1]
    (tmp_path / "counted.json").write_text(json.dumps({"counted_batches": 30, "caches": [cache]}))
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "caches.0.uvm_cache_stats: List should have at least 6 items" in refused.stderr
