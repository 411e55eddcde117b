"""Golden files lie under tests/golden; after a change that is meant, write them anew and read the difference:

UPDATE_GOLDEN=1 pytest tests/unit/suite/tables/test_comparison.py
"""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from suite.records.conditions import Conditions, MachineState
from suite.records.groups import Group, group_records
from suite.records.published import published_rows
from suite.records.record import Record
from suite.records.status import Status
from suite.records.store import StoreError
from suite.tables.comparison import comparison, write_tables
from suite.tables.formats import to_csv, to_markdown
from suite.tables.frames import frame
from suite.tables.quantities import amount, binary_bytes, duration
from suite.tables.rows import SEVERITY, Row, merged_rows
from suite.tables.settings import CPU_CAVEAT
from suite.tables.sheet import Block
from suite.tables.terminal import render
from tests.unit.suite.fabricate import (
    cpu_run,
    environment,
    gpu_run,
    optimum,
    record,
    rounds,
    shuffled,
    verification,
)

GOLDEN = Path(__file__).parents[3] / "golden"


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8"), (
        f"{name} changed; if it is meant: UPDATE_GOLDEN=1 pytest {__file__}"
    )


def groups() -> list[Group]:
    return group_records(shuffled(gpu_run() + cpu_run()))


def only_group(records: list[Record]) -> Group:
    (group,) = group_records(records)
    return group


def row_of(records: list[Record], system: str) -> Row:
    return next(row for row in merged_rows(only_group(records)) if row.system == system)


def block_of(records: list[Record]) -> Block:
    """The table of measured rows."""
    return comparison([only_group(records)]).blocks[0]


def fact(records: list[Record], label: str) -> str:
    (found,) = [one for one in block_of(records).facts if one.startswith(f"{label}: ")]
    return found.removeprefix(f"{label}: ")


def notes_of(records: list[Record], title: str) -> tuple[str, ...]:
    return next((notes.sentences for notes in block_of(records).notes if notes.title.startswith(title)), ())


def cells_of(records: list[Record], system: str) -> dict[str, str]:
    block = block_of(records)
    rows = [dict(zip((head.words for head in block.heads), line.cells, strict=True)) for line in block.lines]
    return next(row for row in rows if row["system"] == system)


def rendered(width: int, shown: list[Group] | None = None) -> str:
    stream = io.StringIO()
    render(Console(file=stream, width=width, color_system=None), shown or groups())
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


def test_golden_files(tmp_path: Path) -> None:
    markdown, table = write_tables(groups(), tmp_path / "tables")
    check_golden("comparison.md", markdown.read_text(encoding="utf-8"))
    check_golden("comparison.csv", table.read_text(encoding="utf-8"))


@pytest.mark.parametrize("width", [80, 240])
def test_golden_console(width: int) -> None:
    check_golden(f"console_{width}.txt", rendered(width))


def test_output_does_not_depend_on_the_order_of_records() -> None:
    outputs = {to_csv(comparison(group_records(shuffled(gpu_run() + cpu_run(), seed)))) for seed in range(5)}
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "other",
    [
        record("b", where=environment(gpu="NVIDIA A100", machine="another")),
        record("b", where=environment(machine="another")),
        record("b", setting={"data": "real"}),
        record("b", setting={"device": "cpu"}),
        record("b", setting={"cache_ratio": 0.05}),
        record("b", where=environment(threads=2)),
    ],
    ids=["GPU", "machine", "data", "device", "setting", "threads"],
)
def test_records_that_do_not_compare_never_share_a_table(other: Record) -> None:
    shown = group_records([record("a"), other])
    assert [len(group.records) for group in shown] == [1, 1]
    assert len({group.key for group in shown}) == 2


def test_tables_follow_the_datasets_order() -> None:
    names = ["criteo_1tb", "unheard_of", "avazu", "criteo_kaggle"]
    shown = group_records([record(setting={"workload": name}) for name in names])
    assert [group.title for group in shown] == ["Criteo Kaggle", "Avazu", "Criteo 1TB", "unheard_of"]


def test_tracks_stand_behind_their_dataset_and_have_no_published_rows():
    names = ["my_shop", "avazu@drift[lifetime=0.2]", "avazu", "criteo_kaggle@growth"]
    shown = group_records([record(setting={"workload": name}) for name in names])
    assert [group.title for group in shown] == [
        "Criteo Kaggle @growth",
        "Avazu",
        "Avazu @drift[lifetime=0.2]",
        "my_shop",
    ]
    assert [len(comparison([group]).blocks) for group in shown] == [1, 2, 1, 1]


def test_frequencies_are_a_fact_of_the_table_unless_they_are_the_usual_ones():
    def training(**setting):
        return fact([record(setting=setting)], "Training")

    assert training().endswith("seed 1")
    assert training(frequency_prefix=0.1).endswith("seed 1, frequencies from the first 10 % of training")
    sketched = training(frequency_prefix=0.5, frequency_sketch_bytes=64_000_000)
    assert sketched.endswith("frequencies by a sketch of 64 MB from the first 50 % of training")


def test_waiting_for_batches_is_a_note_above_two_per_cent_and_in_no_table_below():
    def notes(wait_share):
        made = record()
        timing = made.measurement.timing
        timing = timing.model_copy(update={"data_wait_s": wait_share * sum(timing.window_s)})
        made = made.model_copy(update={"measurement": made.measurement.model_copy(update={"timing": timing})})
        return row_of([made], made.cell.system).notes

    assert notes(0.019) == ()
    assert notes(0.034) == (
        "up to 3.4 % of the timed windows went by waiting for batches: the system is faster than the table says",
    )


def test_latest_run_of_a_round_counts_and_mixed_code_is_said() -> None:
    old = record("a", samples_per_s=100, where=environment(code="old"), started_at="2026-01-01T00:00:00+00:00")
    new = record("a", samples_per_s=200, where=environment(code="new"), started_at="2026-01-02T00:00:00+00:00")
    stale = record("b", where=environment(code="old"))
    assert row_of([new, old], "a").samples_per_s == 200
    assert row_of([new, old], "a").rounds == 1
    assert fact([new, old], "Versions").startswith("Python")
    assert fact([new, stale], "Versions").startswith("several")


def test_rounds_merge_into_medians_and_the_largest_peak() -> None:
    runs = [
        record("a", round=number, samples_per_s=speed, allocated_bytes=peak)
        for number, (speed, peak) in enumerate([(16384.0, 5), (163840.0, 9), (32768.0, 7)])
    ]
    row = row_of(runs, "a")
    assert row.steps_per_s == 2.0
    assert row.epoch_s == pytest.approx(39_291_954 / 32768)
    assert row.device_allocated_bytes == 9
    assert row.unique_ids == 3_000_000
    assert row.hit_rate == pytest.approx(0.95)
    assert row.fetched_bytes_per_step == pytest.approx(2_580_000)


def test_traffic_that_one_round_does_not_know_is_not_summed() -> None:
    known = record("a")
    assert known.measurement is not None
    traffic = known.measurement.traffic.model_copy(update={"bytes_fetched": None, "unique_misses": None})
    blind = record("a", round=1).model_copy(
        update={"measurement": known.measurement.model_copy(update={"traffic": traffic})}
    )
    row = row_of([known, blind], "a")
    assert (row.fetched_bytes_per_step, row.unique_misses, row.hit_rate) == (None, None, None)
    assert row.written_back_bytes_per_step == pytest.approx(2_064_000)


def test_every_status_has_a_severity_and_the_worst_round_names_the_row() -> None:
    assert set(SEVERITY) == set(Status)
    runs = [
        record("a"),
        record("a", round=1, status=Status.TIMEOUT, reason="slow"),
        record("a", round=2, status=Status.CRASHED, reason="boom"),
    ]
    row = row_of(runs, "a")
    assert (row.status, row.reason) == (Status.CRASHED, "boom")
    assert "numbers come from 1 of 3 rounds" in row.notes
    assert row.auroc == 0.7911


def test_system_that_was_wrong_once_shows_no_number() -> None:
    runs = [record("a"), record("a", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False))]
    cells = cells_of(runs, "a")
    assert (cells["it/s"], cells["verified"], cells["status"]) == ("n/a", "no", "wrong_answer")


def test_disturbed_rounds_are_counted_and_the_worst_is_told() -> None:
    runs = []
    for number, (share, sentences) in enumerate([(0.1, ("others took 10%",)), (0.4, ("others took 40%",)), (0.0, ())]):
        seen = Conditions(start=MachineState(), end=MachineState(), others_cpu_share=share)
        runs.append(record("a", round=number, disturbed=sentences).model_copy(update={"conditions": seen}))
    assert row_of(runs, "a").notes == ("disturbed in 2 of 3 rounds: others took 40%",)


def test_quality_that_differs_between_rounds_is_noted() -> None:
    alike = [record("a", auroc=0.79), record("a", round=1, auroc=0.79 + 1e-12)]
    apart = [record("a", auroc=0.79), record("a", round=1, auroc=0.80)]
    assert row_of(alike, "a").notes == ()
    assert row_of(apart, "a").auroc == pytest.approx(0.795)
    assert any("AUROC differs by up to 0.01" in note for note in row_of(apart, "a").notes)


@pytest.mark.parametrize(
    ("checked", "word"),
    [
        (verification(), "bitwise"),
        (verification(difference=0.0, tolerance=1e-6), "bitwise"),
        (verification(difference=3e-7, tolerance=1e-6), "within 3e-07"),
        (verification(difference=1e-3, tolerance=1e-6, passed=False), "no"),
    ],
)
def test_verification_says_how_close(checked: object, word: str) -> None:
    assert cells_of([record("a", checked=checked)], "a")["verified"] == word


def test_ok_without_verification_is_not_verified() -> None:
    unchecked = record("a").model_copy(update={"verification": None})
    assert cells_of([unchecked], "a")["verified"] == "no"


def test_failed_cell_shows_its_status_and_its_reason_on_one_line() -> None:
    failed = record("b", status=Status.OOM_HOST, reason="needs\n9 | 8", phase="build")
    assert "- b: oom_host in phase build: needs 9 \\| 8" in to_markdown(comparison([only_group([record("a"), failed])]))


def test_what_does_not_exist_is_na_and_never_zero() -> None:
    cells = cells_of([record("a", setting={"device": "cpu"})], "a")
    assert {cells[name] for name in ("GPU GB allocated", "GPU GB reserved", "vs full_gpu")} == {"n/a"}
    assert cells["index MB"] == "0"  # on the device, and needs none there
    failed = cells_of([record("a", status=Status.CRASHED)], "a")
    assert {value for name, value in failed.items() if name not in ("system", "status")} == {"n/a"}


def test_ratio_of_one_round_has_no_interval() -> None:
    both = [record("full_gpu", samples_per_s=200, offloads=False), record("a", samples_per_s=100)]
    assert cells_of(both, "a")["vs full_gpu"] == "0.50 [n/a]"
    assert cells_of(both, "full_gpu")["vs full_gpu"] == "1"


def test_epoch_time_is_marked_unless_a_whole_epoch_ran() -> None:
    assert cells_of([record("a", epoch_measured=True)], "a")["epoch time"] == "48.0s"
    assert cells_of([record("a")], "a")["epoch time"] == "~48.0s"
    mixed = [record("a", epoch_measured=True), record("a", round=1)]
    assert cells_of(mixed, "a")["epoch time"] == "~48.0s"


def test_head_says_what_was_measured_where() -> None:
    run = gpu_run()
    assert "NVIDIA H100 80GB HBM3" in fact(run, "Measured on")
    assert "best possible AUROC 0.80120" in fact(run, "Data")
    for part in ("rowwise_adagrad", "lr 0.1", "batch 16,384", "dim 128", "cache ratio 1 %"):
        assert part in fact(run, "Training")
    assert "20 warm-up, 5 x 40 timed, 10 counted; rounds: 3" in fact(run, "Steps")
    assert fact(run, "Optimum") == (
        "Belady's rule knows the ids of all 230 steps of a cell and of none after; the misses and bytes of the last 10 "
        "count"
    )


def test_cpu_table_states_what_it_cannot_say_and_real_data_has_no_best_auroc() -> None:
    assert CPU_CAVEAT in block_of(cpu_run()).facts
    assert notes_of(cpu_run(), "Ranking") == ("no ranking: fewer than two verified systems offload in this comparison",)
    assert "best possible" not in fact(cpu_run(), "Data")
    assert "device budget 47.7 MiB" in fact(cpu_run(), "Training")
    assert CPU_CAVEAT not in block_of(gpu_run()).facts


def test_ranking_says_who_is_too_close_to_call() -> None:
    assert [place.split(",")[0] for place in notes_of(gpu_run(), "Ranking")] == [
        "1: full_gpu",
        "2",
        "2",
        "4: torchrec_uvm",
    ]


def test_hit_rates_come_with_numerator_and_denominator() -> None:
    (hits,) = notes_of([record("a")], "Found on the device")
    assert hits == "a: 950,000 of 1,000,000 distinct ids (95.00 %); 4,199,840 of 4,259,840 lookups (98.59 %)"


def test_published_rows_stand_apart_with_their_hardware_once_per_dataset() -> None:
    two = [record("a"), record("a", setting={"cache_ratio": 0.05})]
    *_, published = blocks = comparison(group_records(two)).blocks
    assert len(blocks) == 3
    assert len(published.lines) == 2
    assert all("published" in line.cells and "A100" in line.cells[-1] and not line.keys for line in published.lines)
    assert any("do not compare AUROC" in sentence for notes in published.notes for sentence in notes.sentences)
    on_real = comparison([only_group(cpu_run())]).blocks[-1]
    assert not any("do not compare AUROC" in sentence for notes in on_real.notes for sentence in notes.sentences)


def test_published_rows_are_the_papers() -> None:
    assert [len(published_rows(name)) for name in ("criteo_1tb", "criteo_kaggle", "avazu", "other")] == [2, 2, 2, 0]
    colossal, torchrec = published_rows("criteo_1tb")
    assert (colossal.auroc, colossal.gpu_allocated_gb, colossal.cpu_gb) == (0.791299403, 3.75, 94.39)
    assert (torchrec.epoch_s, torchrec.steps_per_s, torchrec.system) == (5700, 45, "torchrec")


def test_csv_has_raw_numbers_without_markup_and_nothing_where_nothing_is_known() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(comparison(groups())))))
    ours = next(line for line in lines if line["system"] == "full_gpu" and line["data"] == "synthetic")
    assert (ours["device_allocated_bytes"], ours["device_index_bytes"]) == ("18000000000", "0")
    assert ours["device"] == "NVIDIA H100 80GB HBM3"
    assert float(ours["hit_rate"]) == 0.95
    published = [line for line in lines if line["kind"] == "published"]
    assert [line["workload"] for line in published] == ["criteo_kaggle"] * 2 + ["avazu"] * 2
    assert float(published[0]["device_allocated_bytes"]) == round(0.9 * 2**30)


def test_frame_keeps_bytes_whole_where_some_are_missing() -> None:
    table = frame(*groups())
    assert str(table["device_rows_bytes"].dtype) == "Int64"
    assert set(table["kind"]) == {"measured"}


def test_no_records_still_give_tables(tmp_path: Path) -> None:
    markdown, table = write_tables([], tmp_path)
    assert "No records yet" in markdown.read_text()
    assert table.read_text().startswith("kind,workload")


def test_table_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("")
    with pytest.raises(StoreError, match=r"comparison\.md"):
        write_tables(groups(), tmp_path / "tables")


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200, 400])
def test_terminal_of_any_width_shows_every_number_whole(width: int) -> None:
    shown = [group for group in groups() if not group.on_cpu]
    text = rendered(width, shown)
    assert "…" not in text
    assert all(len(line) <= width for line in text.split("\n"))
    for line in comparison(shown).blocks[0].lines:
        assert all(cell in text for cell in line.cells[1:])


def test_narrow_terminal_puts_the_papers_columns_first_and_repeats_the_system() -> None:
    text = rendered(80, [group for group in groups() if not group.on_cpu])
    heads = [line for line in text.split("\n") if line.startswith("system")]
    assert re.split(r" +", heads[0]) == ["system", "AUROC", "accuracy", "it/s", "time", "allocated", "reserved", "GB"]
    assert "full_gpu" in heads[1]
    # Once in the first table, once in the second: whoever reads the second need not scroll up.
    assert text.count("\ntorchrec_uvm ") >= 2


def test_variant_of_a_system_is_not_read_as_markup() -> None:
    assert "cache[policy=lfu]" in rendered(240, [only_group([record("cache[policy=lfu]")])])


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (float("nan"), "n/a"), (0, "0"), (0.00123, "0.0012"), (0.1, "0.10"), (42.129, "42.13"),
     (110.06, "110.1"), (12345.6, "12,346")],
)  # fmt: skip
def test_amounts_keep_digits_that_matter(value: float | None, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "n/a"), (4.367, "4.37s"), (49.24, "49.2s"), (59.97, "1m00s"), (725, "12m05s"), (3599.7, "1h00m"),
     (6000, "1h40m")],
)  # fmt: skip
def test_durations_read_as_in_the_paper(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (512, "512 B"), (1024, "1 KiB"), (2**26, "64 MiB"), (3 * 2**29, "1.5 GiB")]
)
def test_bytes_in_binary_units(value: int | None, text: str) -> None:
    assert binary_bytes(value) == text


def test_one_system_in_two_rounds_is_one_row() -> None:
    assert [row.system for row in merged_rows(only_group(rounds("a", [1, 2, 3])))] == ["a"]


def test_system_with_nothing_on_the_device_shows_no_device_bytes() -> None:
    found = record("a", setting={"device": "cpu"})
    assert found.measurement is not None
    memory = found.measurement.memory.model_copy(update={"anatomy_bytes": {"host/rows": 17}})
    measurement = found.measurement.model_copy(update={"memory": memory})
    cells = cells_of([found.model_copy(update={"measurement": measurement})], "a")
    assert {cells[name] for name in ("rows MB", "state MB", "index MB", "staging MB")} == {"n/a"}


def test_misses_and_bytes_stand_beside_the_least_possible_per_step():
    made = record(least=optimum())  # 50,000 misses and 46.44 MB in 10 steps
    row = row_of([made], made.cell.system)
    assert row.misses_over_optimum == pytest.approx(1.25)
    assert row.bytes_over_minimum == pytest.approx(1.25)
    half = made.model_copy(update={"optimum": optimum().model_copy(update={"steps": 5})})
    assert row_of([half], made.cell.system).misses_over_optimum == pytest.approx(0.625)
    cells = cells_of([made], made.cell.system)
    assert (cells["misses, % of optimal"], cells["bytes over minimum"]) == ("125 %", "1.25")
    assert cells_of([record()], made.cell.system)["misses, % of optimal"] == "n/a"
