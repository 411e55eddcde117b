"""Rows on a drive in a report: a sheet, a figure and sentences of their own, and no place among other contests."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from typer.testing import CliRunner

from suite.__main__ import app
from suite.records.groups import group_records
from suite.records.store import RecordStore
from suite.report.figures import throughput_by_budget as draw
from suite.report.figures import throughput_by_bytes
from suite.report.publish import Source, publish
from suite.report.sheets import paper_sheet
from suite.tables import settings
from suite.tables.disk import disk_verdict
from suite.tables.formatting import look
from tests.unit.suite.fabricate import cpu_run
from tests.unit.suite.report.figure_scenes import line
from tests.unit.suite.report.report_scenes import source
from tests.unit.suite.tables.disk_scenes import GIB, MIB, OURS, contest, on_drive


def sweep() -> Source:
    """Three budgets, of which one lacks a system."""
    small = contest(512 * MIB, ours=(0.8, 0.4), mapped=(0.12, 0.06))
    large = [run for run in contest(2 * GIB) if run.cell.system != "rocksdb_table"]
    return source([*small, *contest(), *large])


def text_of(html: str) -> str:
    without = re.sub(r"<script.*?</script>|<style.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", without)).split())


def test_rows_on_a_drive_are_in_no_other_ranking_though_they_offload_from_the_same_machine():
    drive, plain = sweep(), source(cpu_run())
    both = source([*drive.records, *plain.records])
    assert [settings.on_drive(sweep[0]) for sweep in settings.sweeps(both.groups)].count(True) == 1
    assert throughput_by_bytes(drive) is None
    assert paper_sheet(drive.groups).tables == ()
    papers = [paper_sheet(one.groups) for one in (both, plain)]
    assert papers[0].frame.equals(papers[1].frame)


def test_the_figure_has_a_line_per_system_with_intervals_under_that_of_full_ram():
    with look("test"):
        figure = draw(sweep())
    whole, alone = figure.axes
    for axes in (whole, alone):
        assert line(axes, "full_ram").get_ydata() == [1, 1]
    bars = {found.get_label(): found for found in whole.containers if isinstance(found, ErrorbarContainer)}
    assert set(bars) == {OURS, "mapped_table", "rocksdb_table"}
    (drawn, _, (segments,)) = bars[OURS].lines
    assert drawn.get_xdata().tolist() == [512 * MIB, GIB, 2 * GIB]
    assert drawn.get_ydata().tolist() == pytest.approx([0.8, 0.95, 0.95])
    low, high = segments.get_segments()[1][:, 1]
    assert (low, high) == pytest.approx((0.95 * 0.9755, 0.95 * 1.0252), rel=1e-3)
    assert len(bars["rocksdb_table"].lines[0].get_xdata()) == 2
    assert draw(source(cpu_run())) is None


def test_the_page_opens_with_verdict_and_figure_and_names_no_other_baseline(tmp_path: Path):
    shown = sweep()
    publish(shown, tmp_path)
    html = (tmp_path / "index.html").read_text()
    text = text_of(html)
    said = disk_verdict(shown.groups)
    assert text.index(said) < text.index("Throughput of rows on a drive by host budget")
    assert "The embedding step alone" in text


@pytest.mark.slow
def test_report_and_its_check_run_over_records_on_disk(tmp_path: Path):
    store = RecordStore(tmp_path)
    for record in [*contest(), *on_drive("freq_cache[tier=file]", 0.9)]:
        store.write(record)
    for more in ([], ["--check"]):
        result = CliRunner().invoke(app, ["report", "--out", str(tmp_path), *more])
        assert result.exit_code == 0, result.output
    assert "rocksdb_table" in (tmp_path / "tables" / "comparison.md").read_text()
    assert len(group_records(store.load_all()[0])) == 1
