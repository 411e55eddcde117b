import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.streams.zipf import RankLaw, RankSampler, RankScrambler


@st.composite
def laws(draw, max_rows=3000):
    rows = draw(st.integers(2, max_rows))
    length = draw(st.integers(1, min(12, rows)))
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=length, max_size=length)))
    mass = 1.0 if length == rows else draw(st.floats(0.05, 0.95))
    head = tuple((weights / weights.sum() * mass).tolist())
    exponent = draw(st.one_of(st.just(1.0), st.just(0.0), st.floats(0.0, 4.0)))
    return RankLaw(rows=rows, head=head, exponent=exponent, shift=draw(st.sampled_from([0.0, 2.5, 300.0])))


@settings(max_examples=100, deadline=None)
@given(law=laws())
def test_probabilities_are_positive_and_sum_to_one(law):
    probabilities = law.probabilities(0, law.rows)
    assert probabilities.min() > 0
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-6)
    assert probabilities[: len(law.head)] == pytest.approx(law.head)
    tail = probabilities[len(law.head) :]
    assert np.all(np.diff(tail) <= 1e-9), "the tail rises"


@settings(max_examples=60, deadline=None)
@given(law=laws(), cut=st.integers(0, 3000))
def test_probabilities_in_chunks_equal_the_whole(law, cut):
    cut = min(cut, law.rows)
    parts = np.concatenate([law.probabilities(0, cut), law.probabilities(cut, law.rows)])
    assert np.allclose(parts, law.probabilities(0, law.rows), rtol=1e-12, atol=0)


@settings(max_examples=60, deadline=None)
@given(group=st.lists(laws(), min_size=1, max_size=4))
def test_sampler_gives_every_rank_exactly_its_share_of_evenly_spread_numbers(group):
    count = 20_000
    uniform = np.tile((np.arange(count) + 0.5) / count, (len(group), 1))
    ranks = RankSampler.of(group).ranks(uniform.reshape(-1), count * np.arange(len(group) + 1)).reshape(uniform.shape)
    for law, drawn in zip(group, ranks, strict=True):
        shares = np.bincount(drawn, minlength=law.rows)
        assert len(shares) == law.rows
        # Each rank owns one interval of the line: its count is off by less than one number at either end.
        assert np.abs(shares - count * law.probabilities(0, law.rows)).max() < 2.0 + count * 1e-6


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.3])
def test_random_draws_of_a_large_table_pass_chi_square(exponent):
    law = RankLaw(rows=40_000_000, head=(0.2, 0.1), exponent=exponent, shift=30.0)
    count = 200_000
    ranks = RankSampler.of([law]).ranks(np.random.default_rng(7).random(count), np.array([0, count]))
    edges = np.unique(np.concatenate([np.arange(13), np.geomspace(13, law.rows, 30).astype(np.int64)]))
    expected = count * law.between(edges.astype(np.float64))
    observed = np.histogram(ranks, bins=edges)[0]
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < len(expected) + 4 * np.sqrt(2 * len(expected))


def test_first_and_last_numbers_stay_within_the_table():
    group = [RankLaw(rows=rows, head=(0.5,), exponent=1.1, shift=0.0) for rows in (2, 17, 48_937_457)]
    ranks = RankSampler.of(group).ranks(np.tile([0.0, np.nextafter(1.0, 0.0)], 3), np.arange(0, 8, 2)).reshape(3, 2)
    assert ranks[:, 0].tolist() == [0, 0, 0]
    assert ranks[:, 1].tolist() == [1, 16, 48_937_456]


def test_law_of_a_larger_table_spreads_the_same_tail_mass_over_more_ranks():
    law = RankLaw(rows=1000, head=(0.4, 0.2), exponent=1.2, shift=3.0)
    larger = law.resized(50_000).probabilities(0, 50_000)
    small = law.probabilities(0, 1000)
    assert larger.sum() == pytest.approx(1.0)
    assert larger[:2] == pytest.approx(law.head)
    assert larger[2:1000] / small[2:] == pytest.approx(larger[2] / small[2])
    assert larger[2:1000].sum() < law.tail_mass


@pytest.mark.parametrize(("rows", "head"), [(50, (0.4, 0.2, 0.1)), (2, (2 / 3, 1 / 3)), (1, (1.0,))])
def test_law_of_a_smaller_table_keeps_its_heavy_hitters_and_inside_them_still_sums_to_one(rows, head):
    law = RankLaw(rows=1000, head=(0.4, 0.2, 0.1), exponent=1.2, shift=0.0)
    assert law.resized(rows).head == pytest.approx(head)
    assert law.resized(rows).tail_mass == pytest.approx(0.3 if rows == 50 else 0.0)
    assert RankLaw(rows=1000, head=(0.0, 0.4), exponent=1.2, shift=0.0).resized(1).head == (1.0,)


# Row ids of ranks


def scrambler(rows, seed=0):
    return RankScrambler.of(rows, generator=np.random.Philox(key=seed))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.integers(1, 3000), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_every_row_is_the_id_of_exactly_one_rank(rows, seed):
    scramble = scrambler(rows, seed)
    for table, count in enumerate(rows):
        ids = scramble.table_ids(table, np.arange(count))
        assert np.array_equal(np.sort(ids), np.arange(count))


@pytest.mark.parametrize("rows", [1460, 10_131_227, 48_937_457])
def test_id_order_says_nothing_about_rank_order(rows):
    ranks = np.arange(min(rows, 20_000))
    ids = scrambler([rows]).table_ids(0, ranks)
    assert abs(np.corrcoef(ranks, ids)[0, 1]) < 0.08
    tenths = np.bincount(ids[:1000] * 10 // rows, minlength=10)
    assert tenths.min() > 60, "the most frequent ranks crowd into a part of the table"
