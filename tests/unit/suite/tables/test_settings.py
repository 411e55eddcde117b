"""Captions: what was measured, where and how, in one paragraph."""

from __future__ import annotations

from suite.records.groups import group_records
from suite.records.measured import Conditions, MachineState
from suite.records.record import Record
from suite.tables.settings import CPU_CAVEAT, caption
from tests.unit.suite.fabricate import cpu_run, environment, gpu_run, record, rounds


def captioned(records: list[Record]) -> str:
    return caption(group_records(records))


def test_caption_says_what_was_measured_where_and_how() -> None:
    assert captioned(gpu_run()) == (
        "Measured on NVIDIA H100 80GB HBM3, 84.00 GB; host AMD EPYC 7543 32-Core Processor, 16 cores, 128.0 GB of "
        "memory; synthetic data; best possible AUROC 0.801; rowwise_adagrad, lr 0.1, eps 1e-08, batch 16,384, dim "
        "128; cache ratio 1 %; seed 1; 220 steps in a process of its own, then 10 with traffic counted; 3 rounds x 3 "
        "builds x 4 turns of 20 steps, one process, intervals over rounds; noise floor: the baseline beside itself "
        "1.00 [1.00, 1.00]; torch 2.13.0, torchrec 1.8.0, driver 570.10, code c0de of commit 0123456789."
    )


def test_cpu_table_states_what_it_cannot_say_and_real_data_has_no_best_auroc() -> None:
    said = captioned(cpu_run())
    assert CPU_CAVEAT in said and CPU_CAVEAT not in captioned(gpu_run())
    assert "best possible" not in said
    assert "device budget 47.7 MiB" in said


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
