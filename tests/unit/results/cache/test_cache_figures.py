"""The figures' program runs, at sizes that say nothing: what it measures is for a quiet machine."""

import json
from pathlib import Path
from typing import Any

import alone
import figures
import pytest

TINY = {
    "planning": "--rows 50000 --lookups 2600 --steps 40",
    "stage": "--rows 52000 --lookups 520 --steps 16 --block 4",
    "table_size": "--rows 100000 --lookups 24024 --dim 4 --steps 12 --block 4",
    "miss_cost": "--lookups 24000 --dim 4 --steps 12 --block 4",
    "misses": "--rows 20000 --lookups 2600 --steps 100",
}


def left_by(figure: str, folder: Path) -> dict[str, Any]:
    figures.main([figure, *TINY[figure].split(), "--out", str(folder / "record.json")])
    return json.loads((folder / "record.json").read_text())


@pytest.mark.parametrize("figure", ["planning", "stage", "table_size", "miss_cost"])
def test_figure_leaves_a_record(figure: str, tmp_path: Path) -> None:
    record = left_by(figure, tmp_path)
    assert record["figure"] == figure
    assert record["environment"]["cpu"]
    assert record["results"]


def test_look_ahead_never_beats_the_minimum(tmp_path: Path) -> None:
    found = left_by("misses", tmp_path)["results"]
    assert all(one["relative_to_belady"] >= 1 - 1e-9 for one in found.values())
    for policy in figures.POLICIES:
        assert found[f"{policy}, look-ahead 64"]["unique_misses"] <= found[f"{policy}, look-ahead 0"]["unique_misses"]


def test_systems_alone_take_as_many_turns_each_with_the_model_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "alone.json"
    words = "--scale smoke --workloads avazu --processes 2 --turns 3 --steps 3 --bottom-mlp 16 --top-mlp 24,1 --out"
    alone.main([*words.split(), str(out)])
    record = json.loads(out.read_text())
    assert (record["bottom_mlp"], record["top_mlp"]) == ([16], [24, 1])
    found = record["results"]["avazu"]
    turns = {name: [len(one) for one in processes] for name, processes in found["seconds"].items()}
    assert turns == {name: [3, 3] for name in alone.SYSTEMS}
    assert found["relative_speed"]["freq_cache"] == 1
