"""Calibrating for real, at a size that says little; the step that is cut, its streams and its lines."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from advise_scenes import case, shape

from suite.advise.calibrate import calibrate, fits, measure
from suite.advise.calibrate.calibrate import Calibration, CalibrationFailed, Order
from suite.advise.calibrate.cut import CutTrainer, DensePart
from suite.advise.calibrate.streams import STREAMS, CalibrationTables, geometric_sizes
from suite.advise.case import RowType, Weighed
from suite.advise.costs import Counts
from suite.advise.shape import Shape
from suite.records.record import Cell
from suite.run.cell.feed import in_process
from suite.run.cell.stream import open_workload
from suite.run.cell.training import Trainer, load_initial_rows, tables_of
from suite.run.plan import Options, plan_cells
from systems import registry
from systems.contract import (
    CacheRatio,
    Counters,
    EmbeddingSystem,
    OptimizerKind,
    Purpose,
    SparseOptimizer,
    SystemSpec,
    Tier,
)
from systems.freq_cache import FreqCache
from workloads.batch import Workload
from workloads.dlrm import build_dlrm

PLAIN, CACHE, AHEAD = (Weighed(system=name) for name in ("full_gpu", "freq_cache", "freq_cache[look_ahead=2]"))
HALF = Weighed(system="reference", row_type=RowType.FP16)
SHAPE = shape(rows=9000, batch_size=32)
COUNTS = Counts(lookups=96, distinct=80, misses=40, rows_fetched=40, rows_written_back=40)
STEPS = 6


def _measured(*kernels: Weighed) -> tuple[Calibration, list[int]]:
    """A calibration in this process, and the rounds it told of."""
    told = []
    order = Order(shapes=(SHAPE,), kernels=kernels, seconds=0.01)
    return measure.measured(order, on_progress=lambda what, done, total: told.append(done)), told


def test_every_kernel_has_its_costs_by_stage_or_a_reason() -> None:
    found, told = _measured(PLAIN, CACHE, AHEAD, HALF)
    assert told == [0, 1, 2]  # three rounds at least, however little time there is
    assert "keeps rows in float32" in found.refused["reference fp16"]
    assert [costs.kernel for costs in found.costs] == [PLAIN, CACHE, AHEAD]
    for costs in found.costs:
        assert min(costs.exposed[name].seconds(COUNTS) for name in ("dense", "calls")) > 0
        assert {costs.exposed[name].fixed_s for name in ("lookup", "update")} == {0}
    planning, moving = (
        [costs.exposed[name].seconds(COUNTS) for costs in found.costs] for name in ("planning", "moving")
    )
    assert planning[0] == moving[0] == 0 < min(planning[1], moving[1])
    hidden = [costs.hidden["planning"].seconds(COUNTS) for costs in found.costs]
    assert hidden[:2] == [0, 0]
    assert planning[2] + hidden[2] > 0  # on a thread beside, which training may notice


def test_system_that_looks_ahead_can_be_calibrated_alone() -> None:
    found, _ = _measured(AHEAD)
    assert found.costs[0].exposed["dense"].fixed_s > 0


def test_rows_of_a_file_tier_are_in_the_file_before_they_are_timed() -> None:
    run = measure._ShapeRun(SHAPE, Order(shapes=(SHAPE,), kernels=(), seconds=0.01))
    for trainer in run._trainers(Weighed(system="freq_cache[tier=file]")):
        held = trainer.system.memory()[Tier.DISK, Purpose.ROWS]
        assert held >= sum(run._tables.rows) * SHAPE.embedding_dim * 4
        trainer.system.close()


def test_streams_tell_misses_and_rows_apart() -> None:
    run = measure._ShapeRun(SHAPE, Order(shapes=(SHAPE,), kernels=(), seconds=0.01))
    run._make_batches(len(STREAMS) * measure._BLOCK_STEPS)
    misses = []
    for trainer in (*run._trainers(PLAIN), *run._trainers(CACHE)):
        steps = list(run._turn(trainer, 0))
        assert len(steps) == len(STREAMS) * (measure._BLOCK_STEPS - 1)
        assert all(0 < step["distinct"] <= step["lookups"] for step in steps)
        misses.append(sum(step["misses"] for step in steps))
    resident, few, many = misses
    assert few > many > resident == 0


def test_system_that_counts_only_when_asked_is_asked_in_a_round_that_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: set[EmbeddingSystem] = set()
    steps: list[pd.DataFrame] = []
    count = FreqCache.counters
    monkeypatch.setattr(FreqCache, "count_traffic", lambda system, enabled: asked.add(system))
    monkeypatch.setattr(FreqCache, "counters", lambda system: count(system) if system in asked else Counters(steps=0))
    monkeypatch.setattr(measure, "costs_of", lambda shape, kernels, found: steps.append(found) or [])
    _measured(CACHE, PLAIN)
    few, many, resident = (of["misses"].sum() for _, of in steps[0].groupby("system"))
    assert few > many > resident == 0
    assert len(asked) == 2


@pytest.mark.parametrize("ahead", [0, 1])
def test_misses_counted_at_an_announcement_are_those_of_the_announced_batch(ahead: int) -> None:
    class Announced:
        """Counts batches as they are announced: as many misses as their stream's place, and many of those left out."""

        look_ahead = ahead
        misses = 0
        asked = False
        coming = 3 * len(STREAMS) * measure._BLOCK_STEPS + ahead

        @property
        def system(self) -> "Announced":
            return self

        def count_traffic(self, enabled: bool) -> None:
            self.asked = enabled

        def step(self) -> None:
            timed = self.coming % measure._BLOCK_STEPS
            self.misses += self.asked * (STREAMS.index(measure._stream(self.coming)) if timed else 1000)
            self.coming += 1

        def counters(self) -> Counters:
            return Counters(steps=1, unique_misses=self.misses)

    run = measure._ShapeRun(SHAPE, Order(shapes=(SHAPE,), kernels=(), seconds=0.01))
    assert run._misses(Announced(), 3) == {stream.name: place for place, stream in enumerate(STREAMS)}


def test_no_batch_exceeds_a_cache_that_is_timed_however_hot_its_bags_are() -> None:
    hot = shape(rows=900, batch_size=128, hotness=4)
    run = measure._ShapeRun(hot, Order(shapes=(hot,), kernels=(), seconds=0.01))
    run._make_batches(len(STREAMS) * measure._BLOCK_STEPS)
    slots = [trainer.system.slots for trainer in run._trainers(CACHE)]
    largest = max(count["distinct"] for count in run._counts)
    assert sum(run._tables.rows) // 2 < largest <= slots[0] < slots[1]


def test_shape_whose_batches_have_nearly_all_rows_has_no_costs_of_caches() -> None:
    hotter = shape(rows=900, batch_size=128, hotness=40)
    run = measure._ShapeRun(hotter, Order(shapes=(hotter,), kernels=(), seconds=0.01))
    assert list(run._trainers(CACHE)) == []
    assert run.refused == {"freq_cache": "a batch may have 100% of the rows that it would be tried on"}
    assert len(list(run._trainers(PLAIN))) == 1


def test_process_that_fails_leaves_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho chatter >&2\necho 'out of memory\n' >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(CalibrationFailed, match=r"exit code 3 and no result; its last line: out of memory$"):
        calibrate.calibrate([case("full_gpu")], seconds=0.01, on_progress=lambda *_: None)


@pytest.mark.parametrize(
    ("blocks", "typical"),
    [([(9, 9), (1, 3), (900, 900), (2, 2)], 2), ([(9, 9), (1, 3), (900, 900)], 451), ([(1, 3)], 2)],
)
def test_slow_blocks_do_not_decide_until_they_are_half_of_all(blocks: list[tuple[int, int]], typical: float) -> None:
    clocks = dict.fromkeys(("announce_s", "lookup_s", "update_s", "planning_s", "moving_s"), 0.0)
    same = {"kernel": "full_gpu", "system": 0, "stream": STREAMS[0].name, "ahead": False} | clocks | COUNTS.model_dump()
    steps = [same | {"round": number, "dense_s": float(s)} for number, block in enumerate(blocks) for s in block]
    assert fits.typical(pd.DataFrame(steps))["dense"].tolist() == [typical]


# the step that is cut


def _cell() -> Cell:
    options = Options(systems=(registry.Variant("full_gpu"),), workloads=("avazu",), device="cpu", scale="smoke")
    return plan_cells(options, datasets=None, host_bytes=1 << 34)[0][0].model_copy(update={"lr": 0.05})


def _system(name: str, cell: Cell, workload: Workload) -> EmbeddingSystem:
    variant = registry.Variant.parse(name)
    found = registry.load(variant)
    spec = SystemSpec(
        tables=tables_of(workload.tables, cell.embedding_dim),
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=cell.lr),
        device=torch.device("cpu"),
        budget=CacheRatio(ratio=0.2),
        batch_lookups=workload.batch_lookups,
        parameters=registry.resolved_parameters(variant, found),
    )
    system = found(spec)
    load_initial_rows(system, seed=0)
    return system


@pytest.mark.parametrize("name", ["full_gpu", "freq_cache[policy=lfu]", "freq_cache[policy=lfu,look_ahead=4]"])
def test_training_cut_at_the_pooled_rows_gives_the_same_bits(name: str) -> None:
    cell = _cell()
    workload = open_workload(cell)
    whole, cut = (_system(name, cell, workload) for _ in range(2))
    model = build_dlrm(
        whole,
        dense_columns=workload.dense_columns,
        embedding_dim=cell.embedding_dim,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        seed=0,
        device=torch.device("cpu"),
    )
    feed = in_process(workload, torch.device("cpu"))
    trained = Trainer(model, whole, feed=feed, total_steps=STEPS).run(STEPS)
    dense = DensePart(Shape.of(cell, workload), cut.spec.tables, cut.spec.optimizer)
    trainer = CutTrainer(cut, dense, map(workload.batch, range(STEPS)))
    for _ in range(STEPS):
        clocks = trainer.step()
        assert min(clocks["lookup_s"], clocks["dense_s"], clocks["update_s"]) > 0
        stages_s = clocks["planning_s"], clocks["moving_s"]
        if name == "freq_cache[policy=lfu]":
            assert 0 < min(stages_s) < sum(stages_s) <= clocks["lookup_s"]
        elif name == "full_gpu":
            assert stages_s == (0, 0)
    assert float(trainer.loss) == trained.loss
    for table, rows in workload.tables:
        ids = torch.arange(rows)
        assert torch.equal(whole.read_rows(table, ids).weights, cut.read_rows(table, ids).weights)


# its streams


def test_batches_are_fresh_and_within_their_tables() -> None:
    tables = CalibrationTables(shape(hotness=3))
    generator = np.random.default_rng(0)
    first, second = (tables.batch(STREAMS[1], generator) for _ in range(2))
    assert first.features.lengths().tolist() == [3] * 64 * 3
    assert not first.features.values().equal(second.features.values())
    for name, rows in zip(first.features.keys(), tables.rows, strict=True):
        ids = first.features.to_dict()[name].values()
        assert 0 <= int(ids.min()) <= int(ids.max()) < rows
    assert tables.batch(STREAMS[3], generator).dense.shape == (16, 4)


def test_frequencies_are_those_of_the_steepest_stream() -> None:
    tables = CalibrationTables(shape(batch_size=20_000))
    batch = tables.batch(max(STREAMS, key=lambda stream: stream.skew), np.random.default_rng(0))
    counted = np.bincount(batch.features.to_dict()["table_1"].values().numpy(), minlength=tables.rows[1])
    expected = tables.frequencies()["table_1"].numpy()
    assert counted.argmax() == expected.argmax()
    assert np.corrcoef(counted, expected)[0, 1] > 0.99


@pytest.mark.parametrize(("rows", "tables"), [(1_000_000, 26), (820, 3), (30, 7)])
def test_tables_rise_by_one_factor_to_the_rows_asked_for(rows: int, tables: int) -> None:
    sizes = geometric_sizes(rows, tables=tables)
    assert len(sizes) == tables
    assert rows - 2 * tables <= sum(sizes) <= rows
    assert list(sizes) == sorted(sizes)
    factors = [after / before for before, after in zip(sizes[-4:], sizes[-3:], strict=False) if before > 100]
    assert factors == pytest.approx([factors[0]] * len(factors) if factors else [], rel=0.02)


def test_large_tables_are_cut_to_half_a_gigabyte() -> None:
    tables = CalibrationTables(shape(tables=4, rows=10**9, embedding_dim=128))
    assert sum(tables.rows) * 128 * 4 <= 1 << 29
