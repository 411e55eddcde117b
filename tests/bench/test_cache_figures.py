"""The figures' commands run, at sizes that say nothing: what they measure is for a quiet machine."""

from __future__ import annotations

import json
from pathlib import Path

import cache_figures
import pytest

TINY = {
    "planning": ["--rows", "50000", "--lookups", "2600", "--steps", "40"],
    "stage": ["--rows", "5200", "--lookups", "520", "--steps", "16", "--block", "4"],
    "table-size": ["--rows", "100000", "--lookups", "24024", "--dim", "4", "--steps", "8", "--block", "4"],
    "miss-cost": ["--lookups", "24000", "--dim", "4", "--steps", "8", "--block", "4"],
    "misses": ["--rows", "20000", "--lookups", "2600", "--steps", "100"],
}


@pytest.mark.parametrize("figure", cache_figures.FIGURES)
def test_figure_leaves_a_record(figure: str, tmp_path: Path) -> None:
    cache_figures.main([figure, *TINY[figure], "--out", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["figure"] == figure
    assert record["environment"]["device"].startswith("cpu")
    assert record["results"]


def test_tables_that_do_not_fit_in_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, bytes_per_row = 100_000, 4 * 4 + 4
    command = ["table-size", *TINY["table-size"], "--out", str(tmp_path / "record.json")]
    monkeypatch.setattr(cache_figures, "available_host_bytes", lambda: rows * bytes_per_row - 1)
    with pytest.raises(SystemExit, match=r"rows take .* GB with --dim 4, .* give a smaller --dim"):
        cache_figures.main(command)
    assert not (tmp_path / "record.json").exists()
    monkeypatch.setattr(cache_figures, "available_host_bytes", lambda: rows * bytes_per_row)
    cache_figures.main(command)
    assert (tmp_path / "record.json").exists()


def test_look_ahead_never_beats_the_minimum(tmp_path: Path) -> None:
    cache_figures.main(["misses", *TINY["misses"], "--out", str(tmp_path / "record.json")])
    found = json.loads((tmp_path / "record.json").read_text())["results"]
    assert all(one["relative_to_belady"] >= 1 - 1e-9 for one in found.values())
    for policy in cache_figures.POLICIES:
        assert found[f"{policy}, look-ahead 64"]["unique_misses"] <= found[f"{policy}, look-ahead 0"]["unique_misses"]


def test_steps_of_a_miss_cost_run_miss_what_they_say() -> None:
    system = cache_figures.cached(1_000_000, 50_000, 4, 24_000)
    stream = cache_figures.sliding(1_000_000, 15_000, 5_000, 24_000)
    for step, batch in zip(range(8), stream, strict=False):
        if step == 4:
            system.reset_counters()
        system(batch)
    counters = system.counters()
    assert counters.unique_ids == 4 * 20_000
    assert counters.unique_misses == 4 * 5_000
