"""`python -m suite report`: what it writes and says of bad input, the paper's sheet, and the page."""

import base64
import csv
import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from suite.records.groups import group_records
from suite.records.record import Record, Status
from suite.records.store import RecordStore
from suite.report.publish import Source, page, read, report_command, sheets
from suite.tables.sheet import Sheet
from tests.browser.page_scenes import MARKUP, SCRIPT, fabricated_records
from tests.unit.suite.fabricate import BASELINE, cpu_run, environment, gpu_run, optimum, record, rounds
from tests.unit.suite.report.report_scenes import lines_of, only_table, unverified

app = typer.Typer()
app.command()(report_command)


def stored(root: Path, records: list[Record]) -> Path:
    store = RecordStore(root)
    for one in records:
        store.write(one)
    return root


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


def test_a_run_becomes_tables_figures_and_a_page(tmp_path: Path) -> None:
    result = report("--out", stored(tmp_path, gpu_run()))
    assert result.exit_code == 0, result.output
    assert f"Open {tmp_path}/index.html" in result.stdout
    tables = {path.name for path in (tmp_path / "tables").iterdir()}
    assert tables == {f"{name}.{suffix}" for name in ("comparison", "paper") for suffix in ("md", "csv", "tex")}
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["throughput_by_bytes.svg"]
    page = (tmp_path / "index.html").read_text()
    assert "cache[policy=lfu]" in page
    assert str(tmp_path) not in page


def test_files_that_are_no_records_are_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    stored(tmp_path, [record("a", offloads=False)])
    (tmp_path / "records" / "newer.json").write_text('{"schema_version": 99}')
    (tmp_path / "simulate").mkdir()
    (tmp_path / "simulate" / "simulation.json").write_text('{"schema_version": 1}')
    result = report("--out", tmp_path)
    assert result.exit_code == 0
    assert f"warning: left out {tmp_path}/records/newer.json: has schema version 99" in result.stderr
    assert "simulation.json: is no simulation of this version" in result.stderr
    assert (tmp_path / "index.html").is_file()


def test_of_two_files_with_one_key_the_newer_record_counts_in_any_order(tmp_path: Path) -> None:
    older = record("a", auroc=0.71)
    newer = record("a", auroc=0.72, started_at="2026-11-02T12:00:00+00:00")
    roots = [stored(tmp_path / name, [one]) for name, one in (("older", older), ("newer", newer), ("copy", newer))]
    for order in (roots, roots[::-1]):
        source = read(order)
        assert source.records == (newer,)
        assert source.files == {newer.key: RecordStore(roots[1]).path(newer)}


@pytest.mark.parametrize(
    ("prepare", "arguments", "message"),
    [
        (lambda root: None, ["--out", "{root}"], "has no records/: run python run_bench.py --out"),
        (lambda root: (root / "records").mkdir(), ["--out", "{root}"], "no records to report in"),
        (
            lambda root: ((root / "records").mkdir(), (root / "records" / "x.json").write_text("{")),
            ["--out", "{root}"],
            "x.json: is not JSON, or cut short",
        ),
        (lambda root: None, ["--out", "{root}/o", "--records", "{root}/no"], "--records: "),
        (
            lambda root: stored(root, gpu_run()),
            ["--out", "/dev/null/x", "--records", "{root}"],
            "--out: cannot make /dev/null/x",
        ),
    ],
)
def test_nothing_to_report_is_said_with_what_to_do(prepare, arguments, message, tmp_path: Path) -> None:
    prepare(tmp_path)
    result = report(*(argument.format(root=tmp_path) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "index.html").exists()


# Sheets


ROOT = Path(__file__).resolve().parents[4]


def made(records: list[Record]) -> dict[str, Sheet]:
    return {sheet.name: sheet for sheet in sheets(group_records(records))}


def line_of(sheet: Sheet, system: str, **cells: str) -> dict[str, str]:
    (line,) = [
        line
        for block in sheet.tables
        for line in lines_of(block)
        if line["system"] == system and all(line[name] == text for name, text in cells.items())
    ]
    return line


def row_of(sheet: Sheet, **values: object):
    found = sheet.frame
    for name, value in values.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


def test_sheets_come_in_reading_order_and_the_empty_ones_not_at_all():
    failed = [record("a", status=Status.CRASHED, reason="boom", phase="build")]
    assert list(made(gpu_run())) == list(made(failed)) == ["comparison", "paper"]
    assert list(made([])) == ["comparison"]


def test_machines_never_share_a_table_and_no_two_headings_are_the_same():
    where = (environment(), environment(machine="another"), environment(machine="a third", gpu="NVIDIA A100"))
    given = [run for here in where for run in rounds("a", [9e5, 9.1e5], where=here, least=optimum())]
    for sheet in made(given).values():
        assert len({block.heading for block in sheet.tables}) == len(sheet.tables) == 3


def test_paper_has_the_papers_columns_and_says_whose_each_row_is():
    sheet = made(rounds("full_gpu", [BASELINE] * 3, noise=0.001, offloads=False))["paper"]
    ours, colossal, _ = lines_of(only_table(sheet))
    assert [*ours] == [
        *("system", "AUROC", "accuracy", "it/s", "epoch time", "GPU GB allocated", "GPU GB reserved", "CPU GB"),
        *("row is", "hardware", "batch", "cache ratio or budget"),
    ]
    assert [ours[name] for name in ("row is", "hardware")] == ["measured", "NVIDIA H100 80GB HBM3"]
    assert (colossal["row is"], colossal["batch"]) == ("published", "16,384")
    assert colossal["hardware"] == "NVIDIA A100 80 GB; AMD EPYC 7543, 32 cores; 512 GB"
    assert set(sheet.frame["kind"]) == {"measured", "published"}
    assert row_of(sheet, system="full_gpu")["status"] == "ok"
    assert row_of(sheet, system="torchrec")["device_allocated_bytes"] == round(16.13 * 2**30)


@pytest.mark.parametrize("workload", ["criteo_kaggle", "avazu", "criteo_1tb"])
def test_published_rows_are_verbatim(workload):
    with (ROOT / "suite" / "records" / "published.csv").open(encoding="utf-8", newline="") as file:
        expected = [fields for fields in csv.DictReader(file) if fields["workload"] == workload]
    block = only_table(made([record("a", setting={"workload": workload})])["paper"])
    found = [line for line in lines_of(block) if line["row is"] == "published"]
    assert len(found) == len(expected) == 2
    columns = {
        "system": "system",
        "AUROC": "auroc",
        "accuracy": "accuracy",
        "it/s": "steps_per_s",
        "GPU GB allocated": "gpu_allocated_gb",
        "GPU GB reserved": "gpu_reserved_gb",
        "CPU GB": "cpu_gb",
    }
    for line, fields in zip(found, expected, strict=True):
        assert {head: line[head] for head in columns} == {head: fields[name] for head, name in columns.items()}
    times = {"49": "49s", "30": "30s", "31": "31s", "21": "21s", "6000": "1h40m", "5700": "1h35m"}
    assert [line["epoch time"] for line in found] == [times[fields["epoch_s"]] for fields in expected]


def test_paper_shows_what_failed_and_what_was_not_verified():
    sheet = made([*unverified([record("bare")]), *gpu_run()[-3:]])["paper"]
    assert line_of(sheet, "bare")["row is"] == "measured, not verified"
    failed = line_of(sheet, "reference")
    assert (failed["row is"], failed["AUROC"], failed["it/s"]) == ("oom_device", "n/a", "n/a")
    assert "reference: oom_device in phase build: needs 17.3 GB, the device has 16 GB" in only_table(sheet).notes


# The page is well formed and made from records alone, and has no other markup


SVG = (
    '<?xml version="1.0"?><!DOCTYPE svg><svg><defs><clipPath id="clip"/></defs>'
    '<g clip-path="url(#clip)"/><use href="#clip"/></svg>'
)


def html_of(records: list[Record], **svgs: str) -> str:
    groups = tuple(group_records(records))
    files = {record.key: Path("/runs/records") / f"{record.key}.json" for group in groups for record in group.records}
    source = Source(groups=groups, files=files)
    return page(source, sheets(groups), svgs, Path("/runs/out"))


class Elements(HTMLParser):
    """Open elements that are never closed, and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_every_id_is_its_own() -> None:
    found = Elements(html_of(fabricated_records(), throughput_by_bytes=SVG, miss_ratio=SVG))
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))


def test_every_cell_of_every_sheet_is_on_the_page_with_the_number_it_sorts_by() -> None:
    groups = group_records([*gpu_run(), *cpu_run()])
    cells = re.findall(r'<td[^>]* data-value="([^"]*)">([^<]+)</td>', html_of([*gpu_run(), *cpu_run()]))
    texts = [unescape(text) for _, text in cells]
    expected = [
        cell
        for sheet in sheets(groups)
        for block in sheet.tables
        for line in block.shown((*block.columns, *block.more)).itertuples(index=False)
        for cell in line
    ]
    assert texts == expected
    assert ("0.95", "95.00 %") in cells


def test_page_fetches_nothing_and_runs_its_own_script_alone() -> None:
    text = html_of(fabricated_records())
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in text
    assert "default-src 'none'" in text
    assert not re.search(r'(?:src|href)="https?:', text)


def test_markup_in_names_and_reasons_is_text() -> None:
    text = html_of(fabricated_records())
    assert MARKUP not in text and SCRIPT not in text
    assert MARKUP in unescape(text) and SCRIPT in unescape(text)
    assert "img" not in Elements(text).names
