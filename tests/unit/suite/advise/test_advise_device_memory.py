"""Device bytes as the advisor and the cache's sizing predict them, beside those measured at published sizes.

The records are of `results/device_memory/measure_memory.py` on a virtual device, which is exact for torch's allocator.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from suite.advise.case import CACHING, Case
from suite.records.command_line import OptimizerName, ScaleName
from suite.records.environment import VIRTUAL_DEVICE
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from systems.contract import CacheRatio, EmbeddingSystem, Tier
from systems.freq_cache import sizing
from workloads.batch import Workload
from workloads.streams.synthetic import SyntheticWorkload

FILE = Path(__file__).resolve().parents[4] / "results" / "device_memory" / "memory.json"
DOCS = FILE.parents[2] / "docs"
CONTENT = json.loads(FILE.read_text(encoding="utf-8"))
CELLS = [cell for cell in CONTENT["cells"] if cell["status"] == "ok"]
OF_CACHE = [(number, cell) for number, cell in enumerate(CELLS) if cell["system"].startswith("freq_cache")]
LARGEST_ERROR = 0.01
"""Of the peak of everything that torch has allocated."""
SMALL_TENSORS_BYTES = 1 << 20
"""Of a TBE and a model: what is neither rows, state, staging nor parameters."""


def test_pages_say_how_near_predictions_are() -> None:
    said = f"within {100 * LARGEST_ERROR:g} % of"
    assert all(said in " ".join((DOCS / name).read_text().split()) for name in ("virtual-cuda.md", "simulation.md"))
    assert f"within {SMALL_TENSORS_BYTES >> 20} MiB of what it takes when it is built" in " ".join(
        (DOCS / "virtual-cuda.md").read_text().split()
    )


@cache
def opened(workload: str, batch_size: int) -> Workload:
    """A stream, which is the same for every system."""
    return SyntheticWorkload.create(workload, batch_size=batch_size, seed=0)


@cache
def case_of(number: int) -> Case:
    """What the advisor makes of a measured cell."""
    cell = CELLS[number]
    options = Options(
        systems=cell["system"],
        workloads=cell["workload"],
        scale=ScaleName.FULL,
        optimizer=OptimizerName(cell["optimizer"]),
        cache_ratio=str(cell["cache_ratio"]),
    )
    (planned,) = plan_cells(options, device="cuda", host_bytes=1 << 40)[0]
    workload = opened(planned.workload, planned.batch_size)
    return Case(cell=planned, workload=workload, budget=CacheRatio(ratio=planned.cache_ratio))


def modelled(case: Case) -> bool:
    """Whether the advisor has a model of it: not of what `colossalai_cache` and `hot_split` take."""
    return case.name in CACHING or case.system_class.slots is EmbeddingSystem.slots


def test_records_are_of_a_virtual_device_and_of_every_published_dataset() -> None:
    assert CONTENT["environment"]["gpu"] == VIRTUAL_DEVICE
    assert {cell["workload"] for _, cell in OF_CACHE} == {"criteo_kaggle", "avazu", "criteo_1tb"}
    assert {(cell["optimizer"], cell["cache_ratio"]) for _, cell in OF_CACHE} == {
        ("sgd", 0.01),
        ("rowwise_adagrad", 0.01),
        ("sgd", 0.015),
    }


def test_sizing_of_our_cache_is_what_torch_allocates_and_what_it_accounts_for() -> None:
    """Before the first step there are slots, their state and staging, and the parameters of the model with theirs."""
    for number, cell in OF_CACHE:
        case = case_of(number)
        spec = sizing.CacheSpec.of(case.spec)
        (group,) = sizing.groups_of(spec).groups
        predicted = sizing.device_bytes(spec, group, case.slots)
        values = 2 if cell["optimizer"] == "rowwise_adagrad" else 1  # dense Adagrad has sums from the start
        allocated = cell["built_allocated_bytes"] - 4 * values * case.dense_parameters
        assert case.slots == cell["slots"], cell
        assert 0 <= allocated - predicted <= SMALL_TENSORS_BYTES, cell
        own = sum(size for place, size in cell["anatomy_bytes"].items() if place.startswith(f"{Tier.DEVICE}/"))
        assert own == predicted + sizing.SLOT_ID_BYTES * cell["lookups"], cell


def test_advised_device_memory_is_the_peak_of_training() -> None:
    found = [(case_of(number), cell) for number, cell in enumerate(CELLS) if modelled(case_of(number))]
    assert len(found) > len(OF_CACHE)
    for case, cell in found:
        assert sum(case.device_bytes.values()) == pytest.approx(cell["peak_allocated_bytes"], rel=LARGEST_ERROR), cell
