"""Shapes of steps: what the dense part weighs and computes, and which cells share a calibration."""

from __future__ import annotations

import pytest
import torch
from advise_scenes import shape
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode
from torchrec import KeyedTensor

from suite.advise.calibrate.cut import DensePart
from suite.advise.calibrate.streams import STREAMS, CalibrationTables
from suite.advise.shape import Shape
from suite.run.cell.stream import open_workload
from suite.run.plan import Options, plan_cells
from systems.contract import OptimizerKind, SparseOptimizer
from systems.registry import Variant


def _dense(of: Shape) -> tuple[DensePart, CalibrationTables]:
    tables = CalibrationTables(of)
    return DensePart(of, tables.tables, SparseOptimizer(kind=OptimizerKind.SGD, lr=0.1)), tables


@pytest.mark.parametrize("top", [(8, 1), (32, 16, 1)])
def test_parameters_are_those_of_the_model(top: tuple[int, ...]) -> None:
    of = shape(top_mlp=top)
    dense, _ = _dense(of)
    assert of.dense_parameters == sum(parameter.numel() for parameter in dense.model.parameters())


def test_flops_are_those_that_torch_counts() -> None:
    import numpy as np

    of = shape(bottom_mlp=(64, 32), top_mlp=(64, 32, 1), dense_columns=13)
    dense, tables = _dense(of)
    batch = tables.batch(STREAMS[0], np.random.default_rng(0))
    names = [table.name for table in tables.tables]
    pooled = KeyedTensor(names, [16] * 3, torch.rand(64, 48))
    with FlopCounterMode(display=False) as counter:
        dense.step(batch, pooled)
    first_layer = 2 * 64 * 13 * 64  # whose input needs no gradient
    assert counter.get_total_flops() == pytest.approx(of.dense_flops - first_layer, rel=0.01)


def test_cells_of_nearly_equal_tables_share_a_shape() -> None:
    options = Options(
        systems=(Variant("full_gpu"),), workloads=("criteo_kaggle", "criteo_1tb", "avazu"), device="cpu", scale="smoke"
    )
    cells, _ = plan_cells(options, datasets=None, host_bytes=1 << 34)
    shapes = [Shape.of(cell, open_workload(cell)) for cell in cells]
    assert shapes[0] == shapes[1]
    assert shapes[0] != shapes[2]
    assert shapes[0].rows == 50_000
    assert shapes[0].batch_lookups == 26 * 256


def test_bags_make_shapes_hotter() -> None:
    options = Options(
        systems=(Variant("full_gpu"),), workloads=("mlperf_dlrm_v2",), device="cpu", scale="smoke", batch_size=8
    )
    cells, _ = plan_cells(options, datasets=None, host_bytes=1 << 34)
    assert Shape.of(cells[0], open_workload(cells[0])).hotness == 9  # 214 ids in 26 bags, rounded up


def test_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="extra"):
        shape(colour="red")
