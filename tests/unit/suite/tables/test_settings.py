from __future__ import annotations

from suite.records.groups import group_records
from suite.records.record import Record
from suite.records.turns import Conditions, MachineState
from suite.tables.settings import CPU_CAVEAT, details, facts
from tests.unit.suite.fabricate import cpu_run, environment, gpu_run, record, rounds


def fact(records: list[Record], label: str) -> str | None:
    (group,) = group_records(records)
    found = [one for one in (*facts([group]), *details([group])) if one.startswith(f"{label}: ")]
    return found[0].removeprefix(f"{label}: ") if found else None


def test_head_says_what_was_measured_where_and_how() -> None:
    run = gpu_run()
    assert "NVIDIA H100 80GB HBM3" in str(fact(run, "Measured on"))
    assert "best possible AUROC 0.80120" in str(fact(run, "Data"))
    for part in ("rowwise_adagrad", "lr 0.1", "batch 16,384", "dim 128", "cache ratio 1 %"):
        assert part in str(fact(run, "Training"))
    assert fact(run, "Turns") == "3 rounds x 3 builds x 4 turns of 20 steps, one process"
    assert fact(run, "Noise floor") == "the baseline beside itself 1.00 [0.99, 1.01]"
    assert fact(run, "Disturbed") is None
    assert fact(run, "Steps in a process of its own") == "220, then 10 with traffic counted in the first round"
    assert fact(run, "Optimum") == (
        "Belady's rule knows the ids of all 230 steps of a cell and of none after; the misses and bytes of the last 10 "
        "count"
    )


def test_cpu_table_states_what_it_cannot_say_and_real_data_has_no_best_auroc() -> None:
    (on_cpu,), (on_gpu,) = group_records(cpu_run()), group_records(gpu_run())
    assert CPU_CAVEAT in facts([on_cpu])
    assert CPU_CAVEAT not in facts([on_gpu])
    assert "best possible" not in str(fact(cpu_run(), "Data"))
    assert "device budget 47.7 MiB" in str(fact(cpu_run(), "Training"))


def test_systems_that_raced_elsewhere_are_named() -> None:
    apart = record("cache[tier=disk]", timed={"way": "own process"}, setting={"turn_steps": 1})
    others = [record(name, setting={"turn_steps": 1}) for name in ("full_gpu", "a")]
    assert fact([*others, apart], "Turns") == (
        "1 round x 3 builds x 4 turns of 1 step, one process (cache[tier=disk]: own process)"
    )
    assert fact([record("a", computes_as="full_gpu")], "Turns") is None


def test_of_several_tables_in_one_the_widest_noise_is_told() -> None:
    groups = [
        *group_records([record("full_gpu", setting={"cache_ratio": 0.01})]),
        *group_records([record("full_gpu", noise=0.05, setting={"cache_ratio": 0.05})]),
    ]
    (noise,) = [one for one in facts(groups) if one.startswith("Noise floor")]
    assert noise == "Noise floor: the baseline beside itself 1.0 [0.9, 1.1], the widest of 2"


def test_what_seeds_change_is_told_once() -> None:
    apart = [record(name, round=number, auroc=0.79 + number / 100) for name in "ab" for number in range(2)]
    assert fact(apart, "Rounds") == (
        "2, of a seed each; a's AUROC went from 0.79000 to 0.80000, its accuracy from 0.78250 to 0.78250"
    )
    assert fact(apart[:1], "Rounds") is None


def test_disturbed_rounds_are_counted_and_the_worst_is_told() -> None:
    runs = []
    for number, (share, sentences) in enumerate([(0.1, ("others took 10%",)), (0.4, ("others took 40%",)), (0.0, ())]):
        seen = Conditions(start=MachineState(), end=MachineState(), others_cpu_share=share)
        runs.append(record("a", round=number, disturbed=sentences).model_copy(update={"conditions": seen}))
    assert fact(runs, "Disturbed") == "in 2 of 3 rounds, others took 40%"
    assert fact(runs[1:2], "Disturbed") == "others took 40%"


def test_frequencies_are_told_unless_they_are_the_usual_ones() -> None:
    def training(**setting: object) -> str:
        return str(fact([record(setting=setting)], "Training"))

    assert training().endswith("seed 1")
    assert training(frequency_prefix=0.1).endswith("seed 1, frequencies from the first 10 % of training")


def test_mixed_code_is_said() -> None:
    stale = rounds("b", [1e6], where=environment(code="old"))
    assert str(fact([record("a")], "Versions")).startswith("Python")
    assert str(fact([record("a"), *stale], "Versions")).startswith("several")
