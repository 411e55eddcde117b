"""The pages on simulation, policies, torchrec's planner and advice: figures are there, numbers are the records'."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
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


@pytest.mark.slow
def test_rows_beside_the_papers_are_those_that_their_program_prints() -> None:
    program = [sys.executable, "results/simulate/advice/paper.py"]
    printed = subprocess.run(program, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=PIPE, check=True)
    table = printed.stdout.decode()
    assert len(table.splitlines()) == 2 + 4
    assert table in (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
