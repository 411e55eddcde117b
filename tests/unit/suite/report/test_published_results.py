"""What the repository publishes: every number comes from a record, and the front page shows the published table."""

import json
import re
import shutil
import statistics
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

from suite.records.groups import RecordGroup, group_records
from suite.records.record import Status
from suite.records.store import RecordStore
from suite.report.publish import PAGE, publish, read
from suite.tables.rows import merged_rows
from suite.tables.statistics import turned_and_alone
from systems.registry import DISK as DISK_SYSTEMS
from systems.registry import GROUPS, SYSTEMS
from tests.unit.suite.report.report_scenes import alike
from workloads.schema import DATASETS

ROOT = Path(__file__).resolve().parents[4]
PUBLISHED = ROOT / "results" / "published"
APPROXIMATE = PUBLISHED / "approximate"
DISK, LEVELS = ROOT / "results" / "disk", ROOT / "results" / "levels"


@pytest.mark.slow
@pytest.mark.parametrize("folder", [PUBLISHED, APPROXIMATE, DISK, LEVELS], ids=lambda folder: folder.name)
def test_everything_published_is_what_the_records_give(folder: Path, tmp_path: Path) -> None:
    """`python -m suite report`, with the versions that draw and print as the published files were drawn."""
    pinned = dict(re.findall(r"^([a-z0-9]+)==(\S+)", (ROOT / "requirements" / "base.txt").read_text(), re.MULTILINE))
    for name in ("jinja2", "matplotlib", "pandas"):
        if version(name) != pinned[name]:
            pytest.skip(f"{name} {version(name)} is not the {pinned[name]} that made the published files")
    shutil.copytree(folder / "records", tmp_path / "records")
    source = read([tmp_path], None if folder is APPROXIMATE else ROOT / "results" / "simulate")
    assert source.problems == ()
    made = {path.relative_to(tmp_path) for path in publish(source, tmp_path)}
    there = {path.relative_to(folder) for part in ("tables", "figures") for path in (folder / part).glob("*")}
    assert made == there | {Path(PAGE)}
    assert [name for name in made if not alike(folder / name, tmp_path / name)] == []


def test_published_records_cover_every_system_on_every_workload_verified() -> None:
    records, _ = RecordStore(PUBLISHED).load_all()
    done = {(r.cell.system, r.cell.workload) for r in records if r.cell.data == "synthetic"}
    assert done >= {(system, workload) for system in SYSTEMS for workload in DATASETS}
    for record in records:
        assert record.status is Status.OK, record.cell.label
        if record.cell.system in SYSTEMS:
            assert record.verification is not None
            assert record.verification.passed


def test_rows_on_a_drive_are_published_at_full_size_within_their_budgets() -> None:
    records = [record for folder in (DISK, LEVELS) for record in RecordStore(folder).load_all()[0]]
    assert {record.cell.system for record in records} >= set(DISK_SYSTEMS)
    for record in records:
        assert record.cell.host_budget_bytes is not None
        assert (record.cell.workload, record.cell.scale) == ("criteo_kaggle", "full")
        assert record.status is Status.OK, record.cell.label
        held = record.measurement.held if record.measurement is not None else None
        if record.cell.system in DISK_SYSTEMS and record.cell.system != "full_ram":
            assert held is not None
            assert held.peak_bytes is None or held.peak_bytes <= held.limit_bytes


def test_approximate_systems_trained_long_enough_with_five_seeds_or_more() -> None:
    records, _ = RecordStore(APPROXIMATE).load_all()
    for record in records:
        assert record.status is Status.OK, record.cell.label
        assert record.cell.steps * record.cell.batch_size >= 4_000_000
    rounds = Counter(record.cell.system for record in records)
    assert set(rounds) == set(GROUPS["approximate"])
    assert min(rounds.values()) >= 5


def test_sentences_of_the_page_about_approximate_systems_are_those_of_the_table() -> None:
    table = (APPROXIMATE / "tables" / "comparison.md").read_text()
    shown = (ROOT / "docs" / "systems.md").read_text().split("<!-- approximate: begin -->")[1]
    lines = [line for line in shown.split("<!-- approximate: end -->")[0].splitlines() if line.startswith(("|", ">"))]
    assert len(lines) > len(GROUPS["approximate"])
    assert [line for line in lines if line not in table.splitlines()] == []


@pytest.mark.parametrize("workload", DATASETS)
def test_published_systems_agree_on_auroc_and_beat_the_model_without_embeddings(workload: str) -> None:
    records, _ = RecordStore(PUBLISHED).load_all()
    auroc = {
        (r.cell.system, r.cell.setting, r.cell.round): r.measurement.quality.auroc
        for r in records
        if r.cell.workload == workload and r.cell.data == "synthetic" and r.measurement is not None
    }
    rounds = {number for _, _, number in auroc}
    assert rounds
    margins = []
    for number in rounds:  # which differ in seed
        exact = [value for (system, _, of), value in auroc.items() if system in SYSTEMS and of == number]
        without = [value for (system, _, of), value in auroc.items() if system == "no_embeddings" and of == number]
        assert max(exact) - min(exact) <= 1e-4
        assert without
        margins.append(min(exact) - max(without))
    assert min(margins) >= 0.01
    assert statistics.fmean(margins) >= 0.04  # of 160 steps one seed alone says little


def test_exact_systems_end_long_training_as_the_reference_does_bit_for_bit() -> None:
    records, problems = RecordStore(ROOT / "results" / "quality").load_all()
    assert not problems
    assert len(records) == 7
    auroc = set()
    for record in records:
        assert (record.cell.train_steps + record.cell.counted_steps) * record.cell.batch_size >= 5_000_000
        assert record.measurement is not None
        assert record.verification is not None
        auroc.add(record.measurement.quality.auroc)
        rows = [check for check in record.verification.checks if check.name.startswith("rows after training")]
        if record.cell.system not in {"reference", "hot_split"}:
            assert [(check.max_difference, check.tolerance) for check in rows] == [(0, 0)]
    best = records[0].measurement.quality.best_auroc if records[0].measurement is not None else None
    assert len(auroc) == 1
    page = " ".join((ROOT / "docs" / "protocol.md").read_text().split())
    assert f"AUROC of {auroc.pop():.4f}, of {best:.4f} that is possible" in page


_PAGES = [
    "published",
    "colossalai",
    "published/approximate",
    "disk",
    "levels",
    "levels/pair",
    "ranks",
    "quality",
    "cuda/h200",
    "cuda/h200/avazu",
    "cuda/h200/criteo_1tb",
    "cuda/h200/without_prefetch",
]


@pytest.mark.parametrize("folder", _PAGES)
def test_records_of_a_page_are_of_one_version_of_the_code_and_of_a_clean_checkout(folder: str) -> None:
    records, _ = RecordStore(ROOT / "results" / folder).load_all()
    assert {(record.environment.code, record.environment.dirty) for record in records} == {
        (records[0].environment.code, False)
    }
    assert not [record.key for record in records if record.turns is not None and record.lacks_turns]  # interrupted


def test_every_record_is_of_one_clean_commit_but_those_of_the_gpu() -> None:
    made = {str(path.relative_to(ROOT / "results")): path.read_text() for path in (ROOT / "results").rglob("*.json")}
    assert len(made) > 150
    without = {name for name, text in made.items() if not re.search(r'"commit": ?"[0-9a-f]{40}"', text)}
    assert without == {"streams/statistics.json", "microbench/limits.json"}  # statistics of samples, limits of a test
    assert [name for name, text in made.items() if re.search(r'"dirty":(?! ?false)', text)] == []
    here = [text for name, text in made.items() if not name.startswith("cuda/h200/")]
    assert len({commit for text in here for commit in re.findall(r'"commit": ?"([0-9a-f]{40})"', text)}) == 1


def test_gradients_one_by_one_as_colossalais_authors_take_them_are_no_faster() -> None:
    records, _ = RecordStore(ROOT / "results" / "colossalai").load_all()
    assert {record.cell.round for record in records} == {0, 1, 2}
    rows = {(g.cell.workload, row.system): row for g in group_records(records) for row in merged_rows(g)}
    said = []
    for workload in ("criteo_kaggle", "criteo_1tb"):
        ratios = (rows[workload, name].ratio for name in ("colossalai_cache[gradients=each]", "colossalai_cache"))
        said += [f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" for ratio in ratios]
    page = " ".join((ROOT / "docs" / "systems.md").read_text().split())
    words = "has {} of `full_gpu`, summed {} in the same turns, on Criteo 1TB {} and {}. On Avazu a row strayed"
    assert words.format(*said) in page
    wrong = [(record.cell.workload, record.cell.system) for record in records if record.status is Status.WRONG_ANSWER]
    assert wrong == [("avazu", "colossalai_cache[gradients=each]")]


def test_systems_are_as_fast_alone_as_in_turns() -> None:
    groups, approximate = (group_records(RecordStore(folder).load_all()[0]) for folder in (PUBLISHED, APPROXIMATE))
    apart = _apart(groups)
    assert len(apart) > 2 * len(groups) * 8
    assert max(apart) < 0.05
    said = f"{100 * max(apart):.1f} % in the main tables, {100 * max(_apart(approximate)):.1f} % in that of approximate"
    page = " ".join((ROOT / "docs" / "protocol.md").read_text().split())
    assert f"They differ by at most {said} systems" in page


def _apart(groups: list[RecordGroup]) -> list[float]:
    """Differences of the paces in turns from those alone, of systems and of baselines beside them."""
    rows = [row for group in groups for row in merged_rows(group)]
    return [abs(turned / alone - 1) for row in rows for _, turned, alone in turned_and_alone(row.records)]


def test_published_records_name_no_path_of_the_machine_they_come_from() -> None:
    for path in (PUBLISHED / "records").glob("*.json"):
        text = json.dumps(json.loads(path.read_text()))
        assert not re.search(r'"/[A-Za-z]', text), path.name


def test_every_row_of_the_front_page_is_a_row_of_the_published_table() -> None:
    page = (ROOT / "README.md").read_text()
    shown = page.split("<!-- table: begin -->")[1].split("<!-- table: end -->")[0]
    tables = (PUBLISHED / "tables" / "comparison.md").read_text().split("\n## ")
    (published,) = (table.splitlines() for table in tables if table.startswith("Criteo Kaggle: "))
    title, *rows = (line for line in shown.splitlines() if line)
    assert title == f"**{published[0]}**"
    assert len(rows) > len(SYSTEMS)
    assert [row for row in rows if row not in published] == []
