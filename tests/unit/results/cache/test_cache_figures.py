"""The figures' programs run, at sizes that say nothing: what they measure is for a quiet machine."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import miss_cost
import misses
import one_table
import planners
import planning
import pytest
import stage
import table_size

TINY = {
    planning: ["--rows", "50000", "--lookups", "2600", "--steps", "40"],
    stage: ["--rows", "5200", "--lookups", "520", "--steps", "16", "--block", "4"],
    table_size: ["--rows", "100000", "--lookups", "24024", "--dim", "4", "--steps", "8", "--block", "4"],
    miss_cost: ["--lookups", "24000", "--dim", "4", "--steps", "8", "--block", "4"],
    misses: ["--rows", "20000", "--lookups", "2600", "--steps", "100"],
}


def left_by(program: ModuleType, tmp_path: Path) -> dict[str, object]:
    program.main([*TINY[program], "--out", str(tmp_path / "record.json")])
    return json.loads((tmp_path / "record.json").read_text())


@pytest.mark.parametrize("program", [planning, stage, table_size, miss_cost], ids=lambda program: program.__name__)
def test_figure_leaves_a_record(program: ModuleType, tmp_path: Path) -> None:
    record = left_by(program, tmp_path)
    assert record["figure"] == program.__name__.replace("_", "-")
    assert record["environment"]["cpu"]
    assert record["results"]


def test_tables_that_do_not_fit_in_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, bytes_per_row = 100_000, 4 * 4 + 4
    monkeypatch.setattr(table_size, "available_host_bytes", lambda: rows * bytes_per_row - 1)
    with pytest.raises(SystemExit, match=r"rows take .* GB with --dim 4, .* give a smaller --dim"):
        left_by(table_size, tmp_path)
    assert not (tmp_path / "record.json").exists()


def test_look_ahead_never_beats_the_minimum(tmp_path: Path) -> None:
    found = left_by(misses, tmp_path)["results"]
    assert all(one["relative_to_belady"] >= 1 - 1e-9 for one in found.values())
    for policy in planners.POLICIES:
        assert found[f"{policy}, look-ahead 64"]["unique_misses"] <= found[f"{policy}, look-ahead 0"]["unique_misses"]


def test_steps_of_a_miss_cost_run_miss_what_they_say() -> None:
    system = one_table.cached(1_000_000, 50_000, 4, 24_000)
    stream = one_table.sliding(1_000_000, 15_000, 5_000, 24_000)
    for step, batch in zip(range(8), stream, strict=False):
        if step == 4:
            system.reset_counters()
        system(batch)
    counters = system.counters()
    assert counters.unique_ids == 4 * 20_000
    assert counters.unique_misses == 4 * 5_000
