"""Captions: what was measured, where and how, in one paragraph."""

from suite.records.groups import group_records
from suite.records.measured import Conditions, MachineState
from suite.records.record import Record
from suite.tables.settings import CPU_CAVEAT, caption
from tests.unit.suite.fabricate import cpu_run, environment, gpu_run, record, rounds


def captioned(records: list[Record]) -> str:
    return caption(group_records(records))


def test_the_caveat_of_a_cpu_stands_below_its_tables_alone() -> None:  # the golden files have whole captions
    assert CPU_CAVEAT in captioned(cpu_run()) and CPU_CAVEAT not in captioned(gpu_run())


def test_disturbed_rounds_are_counted_and_the_worst_is_told() -> None:
    runs = []
    for number, (share, sentences) in enumerate([(0.1, ("others took 10%",)), (0.4, ("others took 40%",)), (0.0, ())]):
        seen = Conditions(start=MachineState(), end=MachineState(), others_cpu_share=share)
        runs.append(record("a", round=number, disturbed=sentences).model_copy(update={"conditions": seen}))
    assert "disturbed in 2 of 3 rounds: others took 40%" in captioned(runs)
    assert "disturbed" not in captioned(runs[2:])


def test_mixed_code_is_said() -> None:
    stale = rounds("b", [1e6], where=environment(code="old"))
    assert "of several versions" not in captioned([record("a")])
    assert "of several versions, run them again to compare alike" in captioned([record("a"), *stale])


def test_frequencies_are_told_unless_they_are_the_usual_ones() -> None:
    assert "frequencies" not in captioned([record()])
    assert "frequencies from the first 10 % of training;" in captioned([record(setting={"frequency_prefix": 0.1})])
