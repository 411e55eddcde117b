"""`python -m suite curves`: its files, slots divided among tables, and what torchrec's planner reads of them."""

import ast
import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from listed_traces import skewed_trace
from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
from torchrec.distributed.types import CacheAlgorithm
from typer.testing import CliRunner

from suite.records.command_line import BadOption
from suite.simulate.curves import Curve, SlotSplit, divide_greedily, miss_curves, split_slots
from suite.simulate.curves_command import curve_sizes, curves_command
from suite.simulate.models.lru import LruModel
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.options import open_trace
from suite.simulate.planner_inputs import PlannerInputs, offload_stats, planner_inputs

SMOKE = ("--workload", "criteo_kaggle", "--scale", "smoke", "--warmup", "4", "--batches", "6")


def run(*arguments):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(curves_command)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    result = run(*SMOKE, "--split", "0.2", "--out", str(folder))
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.fixture(scope="module")
def smoke_curves():
    trace = open_trace(workload="criteo_kaggle", scale="smoke")
    return miss_curves(trace, Span(counted_from=4, stop=10), per_table=True)


def test_tables_fit_80_columns_and_name_what_was_followed(written):
    shown = written[1].stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "6 batches counted after 4 of warm-up" in shown
    assert "One LRU cache for all tables" in shown
    assert "9,998 slots, 20.000% of the rows" in shown
    assert "caches of their own have" in shown


def test_csv_holds_the_curves_of_the_library(written, smoke_curves):
    points = pd.read_csv(written[0] / "curves.csv")
    assert points["table"].drop_duplicates().tolist() == ["all", *(curve.name for curve in smoke_curves.tables)]
    for name, curve in [("all", smoke_curves.pooled), *((curve.name, curve) for curve in smoke_curves.tables)]:
        part = points[points["table"] == name]
        assert part["slots"].tolist() == curve_sizes(curve)
        assert part["unique_misses"].tolist() == [curve.misses(slots) for slots in part["slots"]]
        assert part["holds_every_batch"].tolist() == [slots >= curve.largest_batch for slots in part["slots"]]
        assert np.allclose(part["unique_miss_rate"], part["unique_misses"] / curve.unique_ids)


def test_the_printed_division_is_python_and_that_of_the_files(written):
    folder, result = written
    text = result.stdout[result.stdout.index("cache_rows={") + len("cache_rows=") :]
    printed = ast.literal_eval(text[: text.index("}") + 1])
    record = json.loads((folder / "curves.json").read_text())
    assert (record["trace"], record["warmup_batches"], record["counted_batches"]) == ("criteo_kaggle", 4, 6)
    assert record["curves"]["all"]["lookups"] == 6 * 256 * 26
    table = pd.read_csv(folder / "split.csv")
    assert printed == record["split"]["cache_rows"] == dict(zip(table["table"], table["slots"], strict=True))
    assert sum(printed.values()) == 9_998
    assert record["split"]["unique_misses"] == table["unique_misses"].sum()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--split", "1.5"), "--split: '1.5' is neither slots, 1 to the 49,990 rows, nor a share of the rows"),
        (("--split", "700"), "--split: 700 slots are too few to divide"),
        (("--prefetch",), "--prefetch says what --torchrec writes: give --torchrec too"),
        (("--torchrec", "/proc/x/plan.json"), "--torchrec: cannot make /proc/x"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, sentence):
    result = run(*SMOKE, *arguments)
    assert result.exit_code == 2
    assert f"error: {sentence}" in result.stderr
    assert result.stderr.count("\n") == 1


# Slots divided among tables


def curve_of(hits, *, misses=0, largest_batch=1, rows=None, name="t"):
    """A curve from its hits by depth, and misses of every cache."""
    counts = np.array(hits, np.int32)
    total = int(counts.sum()) + misses
    return Curve(
        name=name,
        rows=counts.size if rows is None else rows,
        unique_ids=total,
        lookups=total,
        largest_batch=largest_batch,
        within=counts.cumsum(),
    )


def missed(tables, way, *, resident=False):
    pairs = zip(tables, way, strict=True)
    return sum(0 if resident and given == curve.rows else curve.misses(given) for curve, given in pairs)


def fewest_misses(tables, slots, *, resident=False):
    """Over all ways of giving so many slots."""
    ways = itertools.product(*(range(1, curve.rows + 1) for curve in tables))
    return min(missed(tables, way, resident=resident) for way in ways if sum(way) <= slots)


convex = st.lists(st.integers(0, 9), min_size=1, max_size=7).map(lambda hits: sorted(hits, reverse=True))


@given(st.lists(st.tuples(convex, st.integers(0, 5)), min_size=1, max_size=3), st.integers(0, 22))
def test_no_division_of_convex_curves_misses_less(made, more):
    tables = [curve_of(hits, misses=misses) for hits, misses in made]
    slots = len(tables) + more
    division = divide_greedily(tables, slots)
    assert sum(division) <= slots
    assert missed(tables, division) == fewest_misses(tables, slots)


def misses_of(trace, slots, span):
    return replay(LruModel(Setting(trace=trace, span=span, slots=slots), {})).unique_misses


def test_predicted_misses_are_what_caches_of_these_sizes_miss():
    trace = skewed_trace(tables=[2_000, 30, 6_000, 700], batches=30, samples=150)
    span = Span(counted_from=12, stop=30)
    curves = miss_curves(trace, span, per_table=True)
    split = split_slots(curves, 900)
    assert sum(split.cache_rows.values()) == 900
    for table, (slots, misses) in enumerate(zip(split.cache_rows.values(), split.misses, strict=True)):
        assert misses_of(trace.only(table), slots, span) == misses
        assert slots >= curves.tables[table].largest_batch
    assert misses_of(trace, 900, span) == split.shared_misses


@pytest.mark.parametrize(
    ("own", "shared", "answer"),
    [
        (90, 100, "Worth it: caches of their own have 10.0% fewer misses than one shared by all tables."),
        (99, 100, "Hardly worth it: caches of their own have only 1.0% fewer misses than one shared"),
        (105, 100, "Not worth it: caches of their own have 5.0% more misses than one shared by all tables."),
        (0, 0, "Not worth it: caches of their own have 0.0% fewer misses"),
    ],
)
def test_one_sentence_says_whether_it_is_worth_it(own, shared, answer):
    split = SlotSplit(slots=1, cache_rows={"a": 1}, misses=(own,), shared_misses=shared)
    assert split.answer.startswith(answer)


@given(st.lists(st.tuples(convex, st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=3), st.integers(0, 22))
def test_tables_that_may_lie_on_the_device_whole_are_at_most_one_step_from_the_best(made, more):
    tables = [curve_of(hits, misses=misses, rows=len(hits) + unused) for hits, misses, unused in made]
    slots = len(tables) + more
    division = divide_greedily(tables, slots, resident=True)
    assert sum(division) <= slots
    lost = missed(tables, division, resident=True) - fewest_misses(tables, slots, resident=True)
    assert 0 <= lost <= max(sum(hits) + misses for hits, misses, _ in made)


# What `--torchrec` writes, read by torchrec's own classes


SPAN = Span(counted_from=10, stop=30)


@pytest.fixture(scope="module")
def curves():
    return miss_curves(skewed_trace(tables=[3_000, 40, 9_000], batches=30, samples=150), SPAN, per_table=True)


def torchrecs(stats):
    return EmbeddingOffloadStats(**stats.model_dump() | {"mrc_hist_counts": torch.tensor(stats.mrc_hist_counts)})


def test_torchrec_expects_what_the_curve_says_at_every_size(curves):
    for curve in curves.tables:
        stats = torchrecs(offload_stats(curve, curves.batches))
        for slots in {1, 2, curve.largest_batch, curve.used_rows // 2, curve.used_rows, curve.rows - 1}:
            assert stats.expected_miss_rate(slots / curve.rows) == pytest.approx(curve.miss_rate(slots), abs=1e-6)
        assert stats.expected_miss_rate(1.0) == 0
        assert stats.expected_lookups == round(curve.unique_ids / curves.batches)


def test_caches_begin_at_their_largest_batch_and_prefetching_holds_two(curves):
    plain, prefetched = (planner_inputs(curves, batch_size=150, prefetch=on) for on in (False, True))
    for curve in curves.tables:
        for inputs, batches in ((plain, 1), (prefetched, 2)):
            table = inputs.tables[curve.name]
            held = batches * curve.largest_batch
            if held >= curve.rows:
                assert (table.compute_kernel, table.cache) == ("fused", None)
            else:
                assert table.cache.load_factor == held / curve.rows
                assert table.cache.prefetch_pipeline is (batches == 2)
            assert table.pooling_factor == 1
    assert prefetched.tables["t1"].cache is None  # forty rows, nearly all of them in every batch
    assert plain.tables["t2"].cache is not None


def test_slots_are_divided_where_they_save_most_and_all_of_them_are_used(curves):
    inputs = planner_inputs(curves, batch_size=150, slots=2_000)
    given = {
        name: table.stats.height if table.cache is None else round(table.cache.load_factor * table.stats.height)
        for name, table in inputs.tables.items()
    }
    assert sum(given.values()) == 2_000
    assert given["t1"] == 40
    with pytest.raises(BadOption, match=r"--split: 300 slots are too few for torchrec's caches.* leave out --prefetch"):
        planner_inputs(curves, batch_size=150, slots=300, prefetch=True)


def test_constraints_are_torchrecs_own(curves):
    constraints = planner_inputs(curves, batch_size=75, prefetch=True).constraints()
    large = constraints["t2"]
    assert large.compute_kernels == ["fused_uvm_caching"]
    assert large.pooling_factors == [2.0]
    params = large.cache_params
    assert (params.algorithm, params.prefetch_pipeline) == (CacheAlgorithm.LRU, True)
    assert params.stats.expected_miss_rate(0.5) == pytest.approx(curves.tables[2].miss_rate(4_500), abs=1e-6)
    assert constraints["t1"].compute_kernels == ["fused"]
    assert constraints["t1"].cache_params is None


def test_the_command_writes_what_the_call_returns(tmp_path):
    plan = tmp_path / "new" / "plan.json"
    result = run(*SMOKE, "--torchrec", str(plan), "--prefetch")
    assert result.exit_code == 0, result.output
    assert f"Wrote {plan}" in result.stderr
    inputs = PlannerInputs.read(plan)
    assert (inputs.trace, inputs.batch_size, inputs.slots) == ("criteo_kaggle", 256, None)
    caches = [table.cache for table in inputs.tables.values() if table.cache is not None]
    assert {cache.prefetch_pipeline for cache in caches} == {True}
    assert all(
        set(one["stats"]) == {"cacheability", "expected_lookups", "mrc_hist_counts", "height"}
        for one in json.loads(plan.read_text())["tables"].values()
    )


def test_what_is_no_plan_is_refused_with_the_command_that_makes_one(tmp_path):
    with pytest.raises(BadOption, match=r"No such file.*make it with `python -m suite curves --torchrec"):
        PlannerInputs.read(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"tables": {}}')
    with pytest.raises(BadOption, match=r"other.json: trace: Field required: make it with"):
        PlannerInputs.read(tmp_path / "other.json")
