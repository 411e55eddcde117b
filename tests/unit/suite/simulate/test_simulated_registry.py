"""Policies by name: what a list stands for, and what is said of one that is none."""

import pytest
from listed_traces import setting, skewed_trace

from suite.records.command_line import BadOption
from suite.simulate.models.model import RowBytes, replay
from suite.simulate.models.registry import BOUNDS, MODELS, build, parameters_of, parse_policies
from systems.contract import OptimizerKind, SparseOptimizer


def test_all_has_every_model_in_it_and_each_variant_once() -> None:
    found = parse_policies("all")
    assert {variant.name for variant in found} == set(MODELS)
    resolved = [(variant.name, *sorted(parameters_of(variant).items())) for variant in found]
    assert len(set(resolved)) == len(resolved)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("uvm", ["uvm", *BOUNDS]),
        ("belady,uvm", ["belady", "uvm", "compulsory"]),
        ("freq_cache,freq_cache[policy=static,look_ahead=0]", ["freq_cache", *BOUNDS]),
        ("freq_cache[look_ahead=4, policy=lru]", ["freq_cache[look_ahead=4,policy=lru]", *BOUNDS]),
    ],
)
def test_each_variant_is_named_once_and_bounds_are_always_there(text: str, names: list[str]) -> None:
    assert [str(variant) for variant in parse_policies(text)] == names


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "none named: give all, or some of freq_cache"),
        ("belad", "unknown policy 'belad': did you mean belady"),
        ("freq_cache[policy=fifo]", "'policy' is one of static, lfu, lru"),
        ("no_such_module:Model", "cannot import no_such_module:Model"),
        ("suite.simulate.models.model:Tally", "suite.simulate.models.model:Tally is not a CacheModel"),
    ],
)
def test_what_is_no_policy_is_refused_by_name(text: str, sentence: str) -> None:
    with pytest.raises(BadOption, match=f"--policies: .*{sentence}"):
        parse_policies(text)


@pytest.mark.parametrize(("policy", "moves_state"), [("lru", True), ("fae", False), ("colossalai", False)])
def test_optimizer_state_moves_with_its_row_where_the_policy_moves_it(policy: str, moves_state: bool) -> None:
    model = build(parse_policies(policy)[0], setting(skewed_trace(tables=[900], batches=10, samples=50), 60))
    tally = replay(model)
    row = RowBytes(weights=64, optimizer=SparseOptimizer(kind=OptimizerKind.ADAM, lr=0.1), dim=16)
    each = 64 + 128 * moves_state
    assert tally.rows_written_back > 0
    assert model.bytes_moved(tally, row) == (each * tally.rows_fetched, each * tally.rows_written_back)
