import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listed_traces import skewed_trace
from torchrec import EmbeddingBagConfig

from suite.simulate.curves import Curve, SlotSplit, divide_greedily, miss_curves, split_slots
from suite.simulate.models.lru import LruModel
from suite.simulate.models.model import Setting, Span, replay
from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection


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


def test_the_division_can_be_given_to_the_collection():
    trace = skewed_trace(tables=[300, 500], batches=10, samples=40)
    split = split_slots(miss_curves(trace, Span(counted_from=0, stop=10), per_table=True), 200)
    tables = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=4)
        for name, rows in trace.tables
    ]
    optimizer = SparseOptimizer(kind=OptimizerKind.SGD, lr=0.1)
    cache = CachedEmbeddingBagCollection(
        tables, optimizer=optimizer, cache_ratio=0.5, cache_rows=split.cache_rows, policy="lru"
    )
    assert [*split.cache_rows] == ["t0", "t1"]
    assert cache.memory() is not None


@given(st.lists(st.tuples(convex, st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=3), st.integers(0, 22))
def test_tables_that_may_lie_on_the_device_whole_are_at_most_one_step_from_the_best(made, more):
    tables = [curve_of(hits, misses=misses, rows=len(hits) + unused) for hits, misses, unused in made]
    slots = len(tables) + more
    division = divide_greedily(tables, slots, resident=True)
    assert sum(division) <= slots
    lost = missed(tables, division, resident=True) - fewest_misses(tables, slots, resident=True)
    assert 0 <= lost <= max(sum(hits) + misses for hits, misses, _ in made)
