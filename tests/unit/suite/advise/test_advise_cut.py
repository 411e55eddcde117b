"""A cut step is the step that the suite times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from suite.advise.calibrate.cut import CutTrainer, DensePart
from suite.advise.shape import Shape
from suite.records.record import Cell
from suite.run.cell.feed import in_process
from suite.run.cell.stream import open_workload
from suite.run.cell.training import Trainer, load_initial_rows, tables_of
from suite.run.plan import Options, plan_cells
from systems import registry
from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, SparseOptimizer, SystemSpec
from workloads.batch import Batch, Workload
from workloads.dlrm import build_dlrm

STEPS = 6


def _cell() -> Cell:
    options = Options(systems=(registry.Variant("full_gpu"),), workloads=("avazu",), device="cpu", scale="smoke")
    return plan_cells(options, datasets=None, host_bytes=1 << 34)[0][0].model_copy(update={"lr": 0.05})


def _system(name: str, cell: Cell, workload: Workload) -> EmbeddingSystem:
    variant = registry.Variant.parse(name)
    found = registry.load(variant)
    spec = SystemSpec(
        tables=tables_of(workload, cell.embedding_dim),
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=cell.lr),
        device=torch.device("cpu"),
        budget=CacheRatio(ratio=0.2),
        batch_lookups=workload.batch_lookups,
        parameters=registry.resolved_parameters(variant, found),
    )
    system = found(spec)
    load_initial_rows(system, seed=0)
    return system


@pytest.mark.parametrize(
    "name", ["full_gpu", "freq_cache[policy=lfu]", "freq_cache[policy=lfu,look_ahead=4]", "reference"]
)
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
    trainer = CutTrainer(cut, dense, _batches(workload))
    for _ in range(STEPS):
        batch, clocks = trainer.step()
        assert min(clocks.lookup_s, clocks.dense_s, clocks.update_s) > 0
        assert batch.dense.shape[0] == cell.batch_size
    assert float(trainer.loss) == trained.loss
    for table, rows in workload.tables:
        ids = torch.arange(rows)
        assert torch.equal(whole.read_rows(table, ids).weights, cut.read_rows(table, ids).weights)


def test_own_cache_tells_its_stages_apart_and_others_have_none() -> None:
    cell = _cell()
    workload = open_workload(cell)
    for name, stages in (("freq_cache[policy=lfu]", {"planning", "moving"}), ("full_gpu", set())):
        system = _system(name, cell, workload)
        dense = DensePart(Shape.of(cell, workload), system.spec.tables, system.spec.optimizer)
        _, clocks = CutTrainer(system, dense, _batches(workload)).step()
        assert set(clocks.stages_s) == stages
        assert sum(clocks.stages_s.values()) <= clocks.lookup_s


def _batches(workload: Workload) -> Iterator[Batch]:
    return (workload.batch(index) for index in range(STEPS))
