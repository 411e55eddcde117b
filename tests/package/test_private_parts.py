"""What the product uses of fbgemm's TBE, and its documentation does not promise, is there.

Names that begin with an underscore are other packages' private parts too: the bounds in `pyproject.toml` end with the
versions that the contract tests passed with, as `tests/docs/test_workflows.py` sees.
"""

from __future__ import annotations

import ast
from pathlib import Path

import torch
from torchrec import PoolingType

from systems.fbgemm.tbe import build_tbe
from systems.spec import OptimizerKind, SparseOptimizer

ROOT = Path(__file__).resolve().parents[2]

PICKED_BY_NAME = (
    "cache_index_table_map lxu_state momentum1_dev momentum1_host momentum1_offsets momentum1_physical_offsets "
    "momentum1_uvm weights_dev weights_host weights_offsets weights_physical_offsets weights_precision weights_uvm"
)
"""Parts whose names the product puts together."""


def used_of(*names: str) -> set[str]:
    """Attributes that modules of the systems take from objects of these names: `tbe`, `self.tbe` or `a.b.tbe`."""
    nodes = [node for path in (ROOT / "systems").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith(names)}


def test_parts_of_a_tbe_and_operators_that_the_product_uses_are_there() -> None:
    tbe = build_tbe(
        [(8, 4)],
        table_of_feature=[0],
        pooling=PoolingType.SUM,
        optimizer=SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.1),
        device=torch.device("cpu"),
    )
    parts, operators = used_of("tbe"), used_of("torch.ops.fbgemm")
    assert parts and operators
    assert {name for name in parts | set(PICKED_BY_NAME.split()) if not hasattr(tbe, name)} == set()
    assert {name for name in operators if not hasattr(torch.ops.fbgemm, name)} == set()
