"""Figures of workloads in `docs/synthetic.md` and `docs/protocol.md` are the records'."""

import importlib
import json
import re
from pathlib import Path

import pytest

from suite.records.scales import SMALL
from suite.tables.verdict import AUROC_TOLERANCE

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_the_drift_board_on_the_page_is_that_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "results" / "tracks")
    on_page = importlib.import_module("drift_board").on_page
    record = json.loads((ROOT / "results" / "tracks" / "board.json").read_text())
    assert on_page(record) in page("synthetic")


def test_misses_in_time_order_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "results" / "streams")
    record = json.loads((ROOT / "results" / "streams" / "time_order.json").read_text())
    time_order = importlib.import_module("time_order")
    assert time_order.on_page(record) in page("synthetic")
    both = [[time_order.missed(one) for one in orders.values()] for orders in record.values()]
    pairs = [(float(x), float(y)) for orders in both for cells in zip(*orders, strict=True)
             for x, y in zip(*(cell.split(" / ") for cell in cells), strict=True)]  # fmt: skip
    assert f"by at most {max(abs(x - y) for x, y in pairs):.1f} points" in page("synthetic")
    counted = [one["configuration"]["counted_batches"] for orders in record.values() for one in orders.values()]
    assert f"{min(counted)} to {max(counted)} are counted" in " ".join(page("synthetic").split())


def test_learnt_aurocs_are_those_of_the_record() -> None:
    found = json.loads((ROOT / "results" / "streams" / "learnable.json").read_text())
    section = page("synthetic").split("AUROC after one epoch")[1].split("##")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) == 3
    for dataset, cells in rows:
        runs = {run["kind"]: run for run in found if run["dataset"] == dataset}
        learnt, control = runs["all rows"], runs["no embeddings"]
        assert cells.split(" | ") == [f"{x:.4f}" for x in (learnt["optimum"], learnt["auroc"], control["auroc"])]
        assert learnt["gap"] < 0.02
        assert learnt["auroc"] - control["auroc"] > 0.03


def test_what_sgd_leaves_is_that_of_its_record() -> None:
    found = json.loads((ROOT / "results" / "streams" / "learnable_sgd.json").read_text())
    gaps = [f"{run['gap']:.3f}" for run in found if run["kind"] == "all rows"]
    said = "SGD at a rate of 1, twice that of the scale, ends {}, {} and {} below the optimum"
    assert said.format(*gaps) in page("synthetic")


def test_how_far_rounding_moves_auroc_at_the_rates_of_a_scale_is_that_of_its_record() -> None:
    found = json.loads((ROOT / "results" / "streams" / "rounding.json").read_text())
    spreads = [run["spread"] for run in found if run["lr"] == SMALL.lr[run["optimizer"]]]
    assert len(spreads) == 2 * 3 * 3  # optimizers, datasets, seeds
    (said,) = re.findall(r"moves AUROC by at most (\S+) \(`results/streams/rounding.py`", page("protocol"))
    assert 0.9 * float(said) < max(spreads) <= float(said) < AUROC_TOLERANCE / 4
