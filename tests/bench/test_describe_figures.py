"""The figures' command runs, at a size that says nothing: what it measures is for a quiet machine."""

from __future__ import annotations

import describe_figures


def test_figures_of_generated_rows_are_reported(tmp_path):
    folder = describe_figures.generate(tmp_path, rows=2_100)
    measured = describe_figures.measure(folder, reuse_rows=500)
    assert {part.stage: part.rows for part in measured.passes} == {
        "reading train": 1_800,
        "reading validation": 150,
        "reading test": 150,
        "reuse distances": 500,
    }
    assert measured.table_rows > 26
    text = describe_figures.report(measured)
    assert "26,000 accesses" in text
    assert "peak memory" in text
