"""No simulated policy misses fewer rows than the bound that it is compared with."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, traces

from suite.simulate.models.model import CannotReplay, Setting, Span, replay
from suite.simulate.models.registry import ALL, build, parse_policies
from suite.simulate.options import open_trace
from systems.registry import Variant

pytestmark = pytest.mark.slow

BOUNDS = {"belady", "compulsory"}
ALIKE = ("look_ahead=64", "policy=static,look_ahead", "policy=lfu,look_ahead")
POLICIES = [
    variant
    for variant in parse_policies(",".join([*ALL, "freq_cache[policy=static,ram=1]", "freq_cache[ram=3]"]))
    if variant.name not in BOUNDS | {"cdlrm"} and not any(part in str(variant) for part in ALIKE)
]


def assert_not_below(policy: Variant, setting: Setting) -> None:
    model = build(policy, setting)
    found = replay(model)
    bypass = "on" if model.bypasses or "ram=" in str(policy) else "off"
    slots = max(setting.slots, model.slots)
    optimum = replay(build(Variant("belady", (("bypass", bypass),)), replace(setting, slots=slots)))
    assert optimum.unique_ids == found.unique_ids
    assert optimum.unique_misses <= found.unique_misses


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), trace=traces(most_rows=60, most_ids=12, most_batches=14))
def test_no_policy_misses_fewer_than_belady_with_as_many_slots(
    policy: Variant, data: st.DataObject, trace: ListedTrace
) -> None:
    span = Span(counted_from=data.draw(st.integers(0, trace.length - 1)), stop=trace.length)
    asked = data.draw(st.integers(1, trace.rows))
    try:
        assert_not_below(policy, Setting(trace=trace, span=span, slots=asked))
    except CannotReplay:
        assume(False)


@pytest.mark.parametrize("look_ahead", ["2", "16"])
def test_nor_does_cdlrm_whose_caches_need_larger_tables(look_ahead: str) -> None:
    trace = open_trace(workload="criteo_kaggle@drift", scale="smoke", batch_size=64)
    for slots in (trace.rows // 10, trace.rows // 3):
        policy = Variant("cdlrm", (("look_ahead", look_ahead),))
        assert_not_below(policy, Setting(trace=trace, span=Span(counted_from=5, stop=40), slots=slots))
