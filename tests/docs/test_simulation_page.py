"""The pages on simulation, policies, torchrec's planner and advice: figures are there, numbers are the records'."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from suite.simulate.models.registry import parse_policies
from suite.simulate.results import Simulation

ROOT = Path(__file__).resolve().parents[2]


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "simulation_tables", ROOT / "docs" / "figures" / "simulation_tables.py"
    )
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(("name", "lines"), [("optimal", 20), ("planner", 10)])
def test_the_table_of_a_page_is_that_of_its_record(name: str, lines: int) -> None:
    made = tables()
    page, table = made.TABLES[name]
    _, on_page, _ = made.block(page.read_text(encoding="utf-8"), name)
    assert on_page == table()
    assert len(on_page.splitlines()) > lines


def test_the_record_of_the_page_has_every_policy_at_every_size() -> None:
    simulation = Simulation.model_validate_json(tables().RECORD.read_text(encoding="utf-8"))
    wanted = [str(policy) for policy in parse_policies("all")]
    assert list(simulation.configuration.policies) == wanted
    assert [row.policy for row in simulation.rows] == wanted * 7


def test_rows_beside_the_papers_are_those_of_the_advice() -> None:
    advice = json.loads((ROOT / "results" / "simulate" / "advice" / "advice.json").read_text())
    text = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
    assert len(advice["published"]) == 2
    for row in advice["published"]:
        shown = re.search(rf"^\| criteo_1tb \| {row['published_system']} \| (.*) \|$", text, re.MULTILINE)
        assert shown is not None
        published, _, fp32, tf32 = shown[1].split(" | ")
        assert float(published) == row["published_steps_per_s"]
        assert float(fp32) == round(row["modelled_fp32_steps_per_s"])
        assert float(tf32) == round(row["modelled_tf32_steps_per_s"])
