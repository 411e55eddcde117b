"""The contest of rows on a drive: planned, and held at a tiny size where memory control groups can be made."""

import json
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from suite.records.options import BadOption
from suite.records.scales import DISK_SCALES, SCALES
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.run.control_groups import CannotHold
from suite.run.memory_group import MemoryGroup
from suite.run.plan import Options, check_options, plan_cells
from systems.selection import GROUPS, parse_systems

ROOT = Path(__file__).resolve().parents[4]
OURS = "freq_cache[look_ahead=4,tier=file]"


def options(**changes):
    values = {"systems": tuple(parse_systems("disk")), "workloads": ("criteo_kaggle",), "device": "cpu"}
    return Options(**{**values, "scale": "small", "on_drive": True, **changes})


def test_every_system_of_the_contest_runs_at_every_host_budget():
    cells, _ = plan_cells(options(host_budgets=(1 << 27, 1 << 28)), datasets=None, host_bytes=10**12)
    assert [(cell.host_budget_bytes, cell.system) for cell in cells] == [
        (budget, str(system)) for budget in (1 << 27, 1 << 28) for system in parse_systems("disk")
    ]
    assert {(cell.cache_ratio, cell.device_budget_bytes) for cell in cells} == {(None, None)}


@pytest.mark.parametrize("name", DISK_SCALES)
def test_a_scale_on_a_drive_has_budgets_below_its_tables(name):
    scale = DISK_SCALES[name]
    cells, _ = plan_cells(options(scale=name), datasets=None, host_bytes=10**12)
    assert scale.name == name
    assert dict.fromkeys(cell.host_budget_bytes for cell in cells) == dict.fromkeys(scale.host_budgets)
    if scale.max_rows is not None:
        assert max(scale.host_budgets) < scale.max_rows * scale.embedding_dim * 4


def test_tables_in_memory_have_no_host_budget():
    assert not any(scale.host_budgets for scale in SCALES.values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"on_drive": False, "host_budgets": (1 << 30,)}, "--host-budget is for rows on a drive: give --tier disk"),
        ({"cache_ratios": (0.1,)}, "--tier disk has a --host-budget"),
        ({"device_budgets": (1 << 30,)}, "--tier disk has a --host-budget"),
        ({"device": "cuda"}, "--tier disk computes on a CPU: give --device cpu"),
    ],
)
def test_options_that_do_not_go_together_are_refused(changes, said):
    with pytest.raises(BadOption, match=said):
        check_options(options(**changes))


def make_group() -> None:
    with MemoryGroup.make() as group:
        group.enter()


@pytest.fixture
def can_hold() -> None:
    """A memory control group can be made here."""
    process = get_context("spawn").Process(target=make_group)
    process.start()
    process.join()
    if process.exitcode:
        try:
            MemoryGroup.make().close()
        except CannotHold as error:
            pytest.skip(str(error))
        pytest.skip("this process cannot enter a memory control group")


@pytest.mark.slow
@pytest.mark.usefixtures("can_hold")
def test_the_contest_is_held_and_every_process_stays_within_its_budget(tmp_path):
    names = ["full_ram", "mapped_table", OURS]
    assert set(names) <= set(GROUPS["disk"])
    command = [
        "--tier",
        "disk",
        "--scale",
        "smoke",
        "--workloads",
        "avazu",
        "--steps",
        "16",
        "--systems",
        ",".join(names),
    ]
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "run_bench.py",
            *command,
            "--systems",
            ",".join(names),
            "--out",
            tmp_path / "out",
            "--json",
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert all(json.loads(line) for line in done.stdout.splitlines())
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
