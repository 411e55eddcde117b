"""Golden files lie under tests/golden; after a change that is meant, write them anew and read the difference:

UPDATE_GOLDEN=1 pytest tests/unit/suite/tables/test_comparison.py
"""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from suite.records.groups import RecordGroup, group_records
from suite.records.record import Record, Status
from suite.tables.columns import Columns
from suite.tables.comparison import comparison
from suite.tables.formatting import amount, duration, percent
from suite.tables.sheet import ResultTable, to_csv, to_markdown
from suite.tables.terminal import render
from tests.unit.suite.fabricate import BASELINE, cpu_run, environment, gpu_run, record, shuffled
from tests.unit.suite.report.report_scenes import lines_of

GOLDEN = Path(__file__).parents[3] / "golden"


def groups() -> list[RecordGroup]:
    return group_records(shuffled(gpu_run() + cpu_run()))


def only_table(records: list[Record]) -> ResultTable:
    (block,) = comparison(group_records(records)).tables
    return block


def rendered(width: int, shown: list[RecordGroup] | None = None, columns: Columns = Columns.MAIN) -> str:
    stream = io.StringIO()
    render(Console(file=stream, width=width, color_system=None), shown or groups(), columns)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("comparison.md", lambda: to_markdown(comparison(groups()))),
        ("comparison.csv", lambda: to_csv(comparison(groups()))),
        ("console_120.txt", lambda: rendered(120)),
    ],
)
def test_golden_files(name, made) -> None:
    text, path = made(), GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8"), f"if it is meant: UPDATE_GOLDEN=1 pytest {__file__}"


@pytest.mark.parametrize(
    "other",
    [
        {"where": environment(machine="another")},
        {"setting": {"data": "real"}},
        {"setting": {"cache_ratio": 0.05}},
        {"where": environment(threads=2)},
    ],
)
def test_records_that_do_not_compare_never_share_a_table(other) -> None:
    assert len(group_records([record("a"), record("b")])) == 1
    assert len(group_records([record("a"), record("b", **other)])) == 2


def test_tables_follow_the_datasets_order_tracks_behind_theirs() -> None:
    names = ["my_shop", "criteo_1tb", "avazu@drift", "avazu", "criteo_kaggle@drift"]
    shown = group_records([record(setting={"workload": name}) for name in names])
    titles = ["Criteo Kaggle @drift", "Avazu", "Avazu @drift", "Criteo 1TB", "my_shop"]
    assert [group.title for group in shown] == titles


def test_the_second_table_is_shown_where_all_columns_are_asked_for() -> None:
    assert "verified" in rendered(1000, columns=Columns.ALL)
    assert "verified" not in rendered(1000)


@pytest.mark.parametrize(("noise", "pace", "epoch"), [(0.0001, "50.17", "~47.8s"), (0.04, "50", "~48s")])
def test_no_figure_of_speed_has_a_digit_that_noise_hides(noise: float, pace: str, epoch: str) -> None:
    runs = [record("full_gpu", noise=noise), record("a", samples_per_s=0.5017 * BASELINE, noise=0.0)]
    shown = next(line for line in lines_of(only_table(runs)) if line["system"] == "a")
    assert (shown["it/s"], shown["vs full_gpu"], shown["epoch time"]) == (pace, "0.50 [0.50, 0.50]", epoch)


def test_no_records_still_give_tables() -> None:
    sheet = comparison([])
    assert "No records yet" in to_markdown(sheet)
    assert to_csv(sheet).startswith("kind,workload")


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_terminal_of_any_width_shows_every_number_whole(width: int) -> None:
    shown = [group for group in groups() if not group.on_cpu]
    text = rendered(width, shown, Columns.ALL)
    assert "…" not in text
    assert all(len(line) <= width for line in text.split("\n"))
    for table in comparison(shown).tables[0].frames:
        assert all(cell in text for line in table.itertuples(index=False) for cell in line[1:])


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (amount(None), "n/a"), (amount(float("nan")), "n/a"), (amount(0, 0.1), "0"), (amount(0.00123), "0.0012"),
        (amount(12345.6), "12,346"), (amount(42.129, 0.02), "42.1"), (amount(12345.6, 0.02), "12,300"),
        (amount(42.129, 0.0), "42.13"), (amount(0.04, 9.0), "0.04"),
        (duration(None), "n/a"), (duration(4.367), "4.37s"), (duration(49.24, 0.3), "50s"),
        (duration(59.97), "1m00s"), (duration(727, 0.02), "12m10s"), (duration(3599.7), "1h00m"),
        (percent(None), "n/a"), (percent(0), "0 %"), (percent(1, 2), "100.00 %"), (percent(0.25), "25 %"),
        (percent(0.004), "0.4 %"), (percent(1.2607), "126 %"), (percent(0.99994, 2), "99.99 %"),
        (percent(0.999999, 2), "99.9999 %"), (percent(2e-6, 2), "0.0002 %"),
    ],
)  # fmt: skip
def test_numbers_keep_the_digits_that_matter(shown: str, text: str) -> None:
    assert shown == text


def test_kernels_of_others_and_the_repeat_fill_no_rows_and_are_in_the_raw_numbers() -> None:
    alike = [record(name, same_kernel_as="full_gpu") for name in ("fbgemm_uvm", "cpu_embeddings")]
    failed = record("fbgemm_uvm_caching", status=Status.CRASHED, reason="because")
    table = only_table([record("full_gpu"), *alike, failed])
    assert [line["system"] for line in table.lines] == ["full_gpu", "fbgemm_uvm_caching"]
    assert [line["system"] for line in table.unshown] == ["cpu_embeddings", "fbgemm_uvm", "full_gpu (again)"]
    said = "cpu_embeddings and fbgemm_uvm are full_gpu's kernel on the same memory here"
    assert any(note.startswith(said) for note in table.notes)
