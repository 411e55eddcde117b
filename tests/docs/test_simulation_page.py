"""The pages on simulation with advice, and on torchrec's planner: figures are there, numbers are the records'."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from suite.__main__ import app
from suite.advise.advise import Advice
from suite.simulate.models.registry import parse_policies
from suite.simulate.results import Simulation
from tests.docs.commands import module_of

ROOT = Path(__file__).resolve().parents[2]
TABLES = module_of(ROOT / "docs" / "figures" / "simulation_tables.py")


@pytest.mark.parametrize(("name", "lines"), [("epoch", 7), ("optimal", 20), ("planner", 10)])
def test_the_table_of_a_page_is_that_of_its_record(name: str, lines: int) -> None:
    page, table = TABLES.TABLES[name]
    _, on_page, _ = TABLES.block(page.read_text(encoding="utf-8"), name)
    assert on_page == table()
    assert len(on_page.splitlines()) > lines


def test_the_page_says_what_our_division_saves_beside_torchrecs_plan() -> None:
    page, _ = TABLES.TABLES["planner"]
    rows = [line.split("|")[5:8] for line in page.read_text(encoding="utf-8").splitlines() if line.count("|") == 9]
    counts = [[float(cell.replace(",", "")) for cell in row] for row in rows if row[0].strip()[:1].isdigit()]
    saved = sorted(100 * (1 - ours / has) for has, _, ours in counts)
    assert len(saved) == 9
    said = f"misses {saved[4]:.0f} % less in the median of these rows, and at most {saved[-1]:.0f} % less"
    assert said in " ".join(page.read_text(encoding="utf-8").split())


def test_the_record_of_the_page_has_every_policy_at_every_size() -> None:
    simulation = Simulation.model_validate_json(TABLES.RECORD.read_text(encoding="utf-8"))
    wanted = [str(policy) for policy in parse_policies("all")]
    assert list(simulation.configuration.policies) == wanted
    assert [row.policy for row in simulation.rows] == wanted * 7


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "methods"), [("criteo_kaggle", "50 81"), ("criteo_1tb", "42 45")])
def test_bounds_beside_the_papers_rows_are_those_of_the_advisor(workload: str, methods: str) -> None:
    options = [*("--hardware", "a100"), *("--systems", "full_gpu,freq_cache"), *("--cache-ratio", "0.01", "--json")]
    few = ["--batches", "6", "--device-memory", "1GiB"]  # bounded by the products, whatever is missed
    bounds: dict[tuple[str, float], list[str]] = {}
    for tf32 in ([], ["--tf32"]):
        done = CliRunner().invoke(app, ["advise", "--workload", workload, *options, *few, *tf32])
        for row in Advice.model_validate_json(done.stdout).rows:
            if row.published_steps_per_s is not None and row.least_s is not None:
                bounds.setdefault((row.system, row.published_steps_per_s), []).append(f"{1 / row.least_s.step:.0f}")
    cache, full = map(float, methods.split())
    page = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    for method, system, rate in (("ColossalAI", "freq_cache", cache), ("torchrec", "full_gpu", full)):
        fp32, in_tf32 = bounds[system, rate]
        assert f"| {workload} | {method} | {rate:g} | `{system}` | {fp32} | {in_tf32} |" in page
        assert rate <= float(in_tf32)
