"""What is recommended, and what would change it."""

from advise_scenes import calibration, case

from suite.advise.advising import sizes, weigh
from suite.advise.case import Case, RowType
from suite.advise.costs import Counts
from suite.advise.counts import Replays
from suite.advise.prediction import predict
from suite.advise.recommend import Candidate, choose
from suite.simulate.models.model import CannotReplay
from suite.tables.quantities import binary_bytes
from systems.contract import CacheRatio

COSTS = calibration()
PLAIN = Counts(lookups=192, distinct=100)


def _candidate(found: Case, counts: Counts) -> Candidate:
    return Candidate(found, predict(found, counts, COSTS))


def _cache(ratio: float, misses: float, *, overflow: float = 0.0) -> Candidate:
    counts = PLAIN.model_copy(
        update={"misses": misses, "rows_fetched": misses, "rows_written_back": misses, "overflow_share": overflow}
    )
    return _candidate(case("freq_cache", budget=CacheRatio(ratio=ratio)), counts)


RESIDENT_ONE = _candidate(case("full_gpu"), PLAIN)


def test_fastest_within_the_budget_is_recommended() -> None:
    small, large = _cache(0.1, 90), _cache(0.6, 20)
    everything = [small, large, RESIDENT_ONE]
    assert choose(everything, COSTS, budget=None).best == RESIDENT_ONE.prediction
    tight = choose(everything, COSTS, budget=RESIDENT_ONE.prediction.device_bytes - 1)
    assert tight.best == large.prediction
    tighter = choose(everything, COSTS, budget=large.prediction.device_bytes - 1)
    assert tighter.best == small.prediction
    assert tighter.runner_up is None
    assert "the only one" in tighter.reason
    assert choose(everything, COSTS, budget=10) is None


def test_of_equally_fast_ones_the_smallest_is_recommended() -> None:
    found = choose([RESIDENT_ONE, _cache(0.2, 0.1), _cache(0.5, 0.0)], COSTS, budget=None)
    assert found.best.cache_ratio == 0.2
    assert found.runner_up == RESIDENT_ONE.prediction
    assert "takes the least memory" in found.reason


def test_nearly_as_fast_a_rival_that_takes_less_memory_is_not_said_to_take_more() -> None:
    # the small one is within a per cent of the best, but not of the fastest
    best, fastest, small = (
        Candidate(case(name, budget=CacheRatio(ratio=0.5)), prediction.model_copy(update={"step_s": step_s, **changes}))
        for name, prediction, step_s, changes in (
            ("full_gpu", RESIDENT_ONE.prediction, 1.008, {"device_bytes": 80}),
            ("full_gpu", RESIDENT_ONE.prediction, 1.0, {"device_bytes": 90}),
            ("freq_cache", _cache(0.5, 9).prediction, 1.015, {"device_bytes": 50}),
        )
    )
    found = choose([best, fastest, small], COSTS, budget=None)
    assert (found.best.device_bytes, found.runner_up.device_bytes) == (80, 50)
    assert "takes the least memory" not in found.reason
    assert "0.7% ahead of freq_cache (within the error of predictions: measure both)" in found.reason


def test_cache_that_a_batch_exceeds_is_passed_over() -> None:
    assert choose([_cache(0.1, 50, overflow=0.5)], COSTS, budget=None) is None


def test_reason_names_the_term_that_decides() -> None:
    found = choose([RESIDENT_ONE, _cache(0.3, 95)], COSTS, budget=None)
    assert found.best == RESIDENT_ONE.prediction
    assert "ahead of freq_cache" in found.reason
    assert "mostly by moving: 0.00 ms against 0.76 ms" in found.reason


def test_changes_name_the_hit_rate_and_the_budget_that_turn_the_answer() -> None:
    cached = _cache(0.5, 0.5)
    found = choose([RESIDENT_ONE, cached], COSTS, budget=None)
    assert found.best == cached.prediction
    (rate,) = [change for change in found.changes if "hit rate" in change]
    assert rate.startswith("with a hit rate of freq_cache of at most ")
    assert "(now 99.5%): full_gpu" in rate
    said = float(rate.split("at most ")[1].split("%")[0]) / 100
    # at that rate the other one is chosen, and a quarter of an octave before it is not
    for hit_rate, best in ((said, "full_gpu"), (1 - (1 - said) / 2**0.5, "freq_cache")):
        again = choose([RESIDENT_ONE, _cache(0.5, 100 * (1 - hit_rate))], COSTS, budget=None)
        assert again.best.system == best
    less = f"with less than {binary_bytes(cached.prediction.device_bytes)} of device memory none of these fits"
    assert less in found.changes


def test_larger_budget_that_turns_the_answer_is_named() -> None:
    small = _cache(0.1, 95)
    found = choose([small, RESIDENT_ONE], COSTS, budget=small.prediction.device_bytes)
    assert found.best == small.prediction
    larger = f"with {binary_bytes(RESIDENT_ONE.prediction.device_bytes)} of device memory: full_gpu"
    assert any(change.startswith(larger) for change in found.changes)


def test_caches_are_weighed_at_every_size_and_at_the_budget_and_others_once() -> None:
    budget = case("full_gpu").shape.model_bytes + 30_000
    assert len(sizes(case("full_gpu"), (0.1, 0.2), budget)) == 1
    wide, narrow = (sizes(case("freq_cache[policy=lru]", row_type=of), (0.1, 0.2), budget) for of in RowType)
    assert [one.slots for one in wide[:2]] == [82, 164]
    assert all(0.9 * budget < sum(one.device_bytes.values()) <= budget for one in (wide[2], narrow[2]))
    assert narrow[2].slots > 1.5 * wide[2].slots  # fp16 rows are half as long
    assert len(sizes(case("freq_cache"), (0.1, 0.2), None)) == 2


def test_cases_that_cannot_be_predicted_are_refused_once_with_the_reason() -> None:
    class Refusing(Replays):
        def __init__(self) -> None:
            pass

        def counts(self, case: Case) -> Counts:
            if case.name == "freq_cache":
                raise CannotReplay("too many rows")
            return PLAIN

    found = [case(name) for name in ("full_gpu", "freq_cache", "freq_cache", "torchrec_uvm")]
    weighed, refused = weigh(found, Refusing(), COSTS, on_progress=lambda *_: None)
    assert [one.prediction.system for one in weighed] == ["full_gpu"]
    assert [(one.system, one.reason) for one in refused] == [
        ("freq_cache", "too many rows"),
        ("torchrec_uvm", "torchrec_uvm was not calibrated: it was not asked for"),
    ]
