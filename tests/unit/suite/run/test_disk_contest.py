"""The contest of rows on a drive: planned, and held at a tiny size where memory control groups can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.records.command_line import BadOption
from suite.records.record import Status
from suite.records.scales import DISK_SCALES
from suite.records.store import RecordStore
from suite.run.cell.setup import CellSetup
from suite.run.console.options import Options, named_systems
from suite.run.plan import fitted_to_epoch, plan_cells
from systems.contract import Verdict
from systems.registry import GROUPS, TWO_LEVELS, parse_systems
from tests.faults.cells import needs_memory_groups, tiny_cell

ROOT = Path(__file__).resolve().parents[4]
OURS = "freq_cache[look_ahead=4,tier=file]"


def options(**changes):
    return Options(**{"systems": "disk", "workloads": "criteo_kaggle", "scale": "small", "tier": "disk", **changes})


def planned(*, device="cpu", **changes):
    return plan_cells(options(**changes), device=device, host_bytes=10**12)[0]


def test_every_system_of_the_contest_runs_at_every_host_budget():
    for words in ({}, {"host_budget": "128MiB,256MiB"}):  # those of the scale are the same
        cells = planned(**words)
        assert [(cell.host_budget_bytes, cell.system) for cell in cells] == [
            (budget, str(system)) for budget in (1 << 27, 1 << 28) for system in parse_systems("disk")
        ]
    assert {(cell.cache_ratio, cell.device_budget_bytes) for cell in cells} == {(None, None)}


def test_data_without_a_turn_on_a_drive_are_refused():
    made, _ = fitted_to_epoch(DISK_SCALES["small"], 17 * 16)  # one step before 8 of the shortest turns, of 2
    assert (made.batch_size, made.warmup_steps, made.train_steps + made.counted_steps) == (16, 1, 17)
    with pytest.raises(BadOption, match="271 training rows are too few for 17 batches of 16"):
        fitted_to_epoch(DISK_SCALES["small"], 17 * 16 - 1)


@pytest.mark.parametrize("system", ["hot_split", "full_gpu", "full_ram", "mapped_table"])
def test_only_systems_that_a_host_budget_holds_take_part_and_the_line_to_reach(system):
    cell = tiny_cell(system, host_budget_bytes=1 << 28, cache_ratio=None)
    support = CellSetup.of(cell).support()
    assert (support.verdict is Verdict.YES) == (system in GROUPS["disk"])
    if system == "hot_split":
        assert "keeps its rows in memory, so no host budget would hold it: take --systems disk" in support.reason


@pytest.mark.parametrize(("text", "extra"), [("all", ()), ("all,no_embeddings", ("no_embeddings",))])
def test_all_means_the_systems_on_a_drive_whatever_is_named_beside_it(text, extra):
    on_drive = [str(one) for one in named_systems(options(systems=text), cuda=False)]
    assert on_drive == [*GROUPS["disk"], *extra]
    with_a_device = named_systems(options(systems=text, device_budget="64MiB"), cuda=False)
    assert [str(one) for one in with_a_device] == [*GROUPS["disk"], TWO_LEVELS, *extra]


def test_a_cuda_device_cannot_take_part():
    with pytest.raises(BadOption, match="--tier disk computes on a CPU: give --device cpu"):
        planned(device="cuda")


@pytest.mark.slow
def test_the_contest_is_held_and_every_process_stays_within_its_budget(tmp_path):
    needs_memory_groups()
    names = ["full_ram", "mapped_table", OURS]
    assert set(names) <= set(GROUPS["disk"])
    command = ["--tier", "disk", "--scale", "smoke", "--workloads", "avazu", "--steps", "16"]
    done = subprocess.run(
        [sys.executable, ROOT / "run_bench.py", *command, "--systems", ",".join(names), "--out", tmp_path / "out"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found, problems = RecordStore(tmp_path / "out").load_all()
    records = {record.cell.system: record for record in found}
    assert not problems
    assert {name: record.status for name, record in records.items()} == dict.fromkeys(names, Status.OK)
    assert len({record.measurement.quality.auroc for record in records.values()}) == 1
    for name, record in records.items():
        turns, held = record.turns, record.measurement.held
        assert len(turns.system_s) == len(turns.embedding_s) == record.cell.builds
        assert all(len(block) == record.cell.turns for block in turns.system_s)
        if name == "full_ram":
            assert held is None
            assert turns.drive is None
            continue
        assert held.limit_bytes == held.without_rows_bytes + record.cell.host_budget_bytes
        assert held.peak_bytes is None or held.peak_bytes <= held.limit_bytes
        assert turns.losses == "equal"
        assert turns.drive.written_bytes > 0
        assert record.measurement.drive.reads_per_s_depth_32 > 0
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1 << 22]
    assert not left, "tables that nobody needs any more"
