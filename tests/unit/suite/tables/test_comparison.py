"""Golden files lie under tests/golden; after a change that is meant, write them anew and read the difference:

UPDATE_GOLDEN=1 pytest tests/unit/suite/tables/test_comparison.py
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from suite.records.groups import Group, group_records
from suite.records.record import Record, Status
from suite.tables.columns import Columns
from suite.tables.comparison import comparison
from suite.tables.formatting import amount, duration, percent
from suite.tables.sheet import Table, to_csv, to_markdown
from suite.tables.terminal import render
from tests.unit.suite.fabricate import BASELINE, cpu_run, environment, gpu_run, record, shuffled
from tests.unit.suite.report.report_scenes import lines_of

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


def only_table(records: list[Record]) -> Table:
    (block,) = comparison([only_group(records)]).tables
    return block


def cells_of(records: list[Record], system: str) -> dict[str, str]:
    """A system's cells by column, of both tables."""
    return next(line for line in lines_of(only_table(records)) if line["system"] == system)


def rendered(width: int, shown: list[Group] | None = None, columns: Columns = Columns.MAIN) -> str:
    stream = io.StringIO()
    render(Console(file=stream, width=width, color_system=None), shown or groups(), columns)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


def test_golden_files() -> None:
    sheet = comparison(groups())
    check_golden("comparison.md", to_markdown(sheet))
    check_golden("comparison.csv", to_csv(sheet))


def test_golden_console() -> None:
    check_golden("console_120.txt", rendered(120))


@pytest.mark.parametrize(
    "other",
    [
        record("b", where=environment(machine="another")),
        record("b", setting={"data": "real"}),
        record("b", setting={"cache_ratio": 0.05}),
        record("b", where=environment(threads=2)),
    ],
    ids=["machine", "data", "setting", "threads"],
)
def test_records_that_do_not_compare_never_share_a_table(other: Record) -> None:
    shown = group_records([record("a"), other])
    assert [len(group.records) for group in shown] == [1, 1]
    assert len({group.key for group in shown}) == 2


def test_tables_follow_the_datasets_order_tracks_behind_theirs() -> None:
    names = ["my_shop", "criteo_1tb", "avazu@drift", "avazu", "criteo_kaggle@growth"]
    shown = group_records([record(setting={"workload": name}) for name in names])
    titles = ["Criteo Kaggle @growth", "Avazu", "Avazu @drift", "Criteo 1TB", "my_shop"]
    assert [group.title for group in shown] == titles


def test_main_columns_come_first_and_the_second_table_has_the_rest() -> None:
    main, rest = only_table(gpu_run()).frames
    assert [column.words for column in main.columns] == [
        "system", "knew", "AUROC", "it/s", "vs full_gpu", "vs plain table", "GPU GB reserved", "CPU GB", "hit rate",
        "misses, % of optimal", "status",
    ]  # fmt: skip
    assert main.iloc[:, 0].tolist() == rest.iloc[:, 0].tolist()
    assert not {column.words for column in main.columns[1:]} & {column.words for column in rest.columns}
    assert "verified" in rendered(1000, columns=Columns.ALL)
    assert "verified" not in rendered(1000)


def test_no_figure_of_speed_has_a_digit_that_noise_hides() -> None:
    def shown(noise: float) -> dict[str, str]:
        runs = [record("full_gpu", noise=noise), record("a", samples_per_s=0.5017 * BASELINE, noise=0.0)]
        return cells_of(runs, "a")

    fine, coarse = shown(0.0001), shown(0.04)
    assert (fine["it/s"], fine["vs full_gpu"]) == ("50.17", "0.50 [0.50, 0.50]")
    assert (coarse["it/s"], coarse["vs full_gpu"]) == ("50", "0.50 [0.50, 0.50]")
    assert (fine["epoch time"], coarse["epoch time"]) == ("~47.8s", "~48s")


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
    ("value", "noise", "text"),
    [(None, None, "n/a"), (float("nan"), None, "n/a"), (0, 0.1, "0"), (0.00123, None, "0.0012"),
     (12345.6, None, "12,346"), (42.129, 0.02, "42.1"), (12345.6, 0.02, "12,300"), (42.129, 0.0, "42.13"),
     (0.04, 9.0, "0.04")],
)  # fmt: skip
def test_amounts_keep_digits_that_matter(value: float | None, noise: float | None, text: str) -> None:
    assert amount(value, noise) == text


@pytest.mark.parametrize(
    ("seconds", "noise", "text"),
    [(None, None, "n/a"), (4.367, None, "4.37s"), (49.24, 0.3, "50s"), (59.97, None, "1m00s"), (727, 0.02, "12m10s"),
     (3599.7, None, "1h00m")],
)  # fmt: skip
def test_durations_read_as_in_the_paper(seconds: float | None, noise: float | None, text: str) -> None:
    assert duration(seconds, noise) == text


@pytest.mark.parametrize(
    ("share", "decimals", "text"),
    [(None, 0, "n/a"), (0, 0, "0 %"), (1, 2, "100.00 %"), (0.25, 0, "25 %"), (0.004, 0, "0.4 %"), (1.2607, 0, "126 %"),
     (0.99994, 2, "99.99 %"), (0.999999, 2, "99.9999 %"), (2e-6, 2, "0.0002 %")],
)  # fmt: skip
def test_shares_are_0_or_100_only_where_they_are_nothing_or_all(share: float | None, decimals: int, text: str) -> None:
    assert percent(share, decimals) == text


def test_kernels_of_others_and_the_repeat_fill_no_rows_and_are_in_the_raw_numbers() -> None:
    alike = [record(name, same_kernel_as="full_gpu") for name in ("fbgemm_uvm", "cpu_embeddings")]
    failed = record("fbgemm_uvm_caching", status=Status.CRASHED, reason="because")
    sheet = comparison([only_group([record("full_gpu"), *alike, failed])])
    assert [line["system"] for line in sheet.tables[0].lines] == ["full_gpu", "fbgemm_uvm_caching"]
    assert any(
        note.startswith("cpu_embeddings and fbgemm_uvm are full_gpu's kernel on the same memory here")
        for note in sheet.tables[0].notes
    )
    unshown = [line["system"] for line in sheet.tables[0].unshown]
    assert unshown == ["cpu_embeddings", "fbgemm_uvm", "full_gpu (again)"]
