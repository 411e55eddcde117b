"""Counts of cells come from replays of their own batches, which contract tests compare with training."""

from advise_scenes import PowerTrace, case

from suite.advise.costs import Counts
from suite.advise.counts import Replays, model_of, steady_span
from suite.simulate.models import registry as models
from suite.simulate.models.model import Setting, Span, replay
from systems.registry import Variant

SPAN = Span(counted_from=2, stop=6)


def test_cache_is_replayed_with_its_policy_its_look_ahead_and_its_slots() -> None:
    trace = PowerTrace(batches=6)
    found = Replays(trace, SPAN).counts(case("freq_cache[look_ahead=2,policy=lru,tier=file]"))
    model = Variant("freq_cache", (("policy", "lru"), ("look_ahead", "2")))
    tally = replay(models.build(model, Setting(trace=trace, span=SPAN, slots=410)))
    assert found == Counts.of(tally, largest=found.largest)
    assert 0 < found.misses < found.distinct <= found.largest


def test_systems_without_a_cache_miss_nothing() -> None:
    replays = Replays(PowerTrace(batches=6), SPAN)
    counts = replays.counts(case("full_gpu"))
    assert counts.lookups == 192
    assert 0 < counts.distinct <= counts.largest < 192
    assert (counts.misses, counts.moved) == (0, 0)
    assert model_of(case("fbgemm_uvm_caching")) is None  # there is no such cache on a CPU


def test_rows_read_in_place_are_moved_once_per_id_and_again_in_backward() -> None:
    replays = Replays(PowerTrace(batches=6), SPAN)
    counts = replays.counts(case("torchrec_uvm", device="cuda"))
    assert counts.rows_fetched == counts.lookups + counts.distinct
    assert counts.rows_written_back == counts.distinct


def test_equal_caches_are_replayed_once() -> None:
    trace = PowerTrace(batches=4)
    replays = Replays(trace, Span(counted_from=1, stop=4))
    replays.counts(case("freq_cache[policy=lfu]"))
    before = trace.asked
    replays.counts(case("freq_cache[policy=lfu,tier=file]"))
    assert trace.asked == before
    replays.counts(case("freq_cache[policy=lru]"))
    assert trace.asked > before


def test_a_third_of_a_span_is_left_uncounted() -> None:
    trace = PowerTrace(batches=90)
    assert steady_span(trace) == Span(counted_from=30, stop=90)
    assert steady_span(trace, batches=2) == Span(counted_from=0, stop=2)
    assert steady_span(PowerTrace(batches=1)) == Span(counted_from=0, stop=1)
