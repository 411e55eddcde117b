"""What the product uses of fbgemm's TBE and its documentation does not promise is named here, and is there.

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

TBE_PARTS = (
    "cache_algorithm cache_index_table_map cache_miss_counter current_device embedding_specs feature_table_map flush "
    "gather_uvm_cache_stats get_optimizer_state hash_size_cumsum iter iter_cpu lxu_cache_locations "
    "lxu_cache_locking_counter lxu_cache_state lxu_cache_weights lxu_state momentum1_dev momentum1_host "
    "momentum1_offsets momentum1_physical_offsets momentum1_uvm optimizer prefetch prefetch_pipeline prefetch_stream "
    "record_cache_metrics reset_cache_states rows_per_table set_learning_rate split_embedding_weights "
    "split_optimizer_states timesteps_prefetched total_hash_size total_hash_size_bits update_hyper_parameters use_cpu "
    "uvm_cache_stats uvm_host_mapped weights_dev weights_host weights_offsets weights_physical_offsets "
    "weights_precision weights_uvm"
)
OPERATORS = {
    "lxu_cache_locking_counter_decrement",
    "FloatToFused8BitRowwiseQuantized",
    "Fused8BitRowwiseQuantizedToFloat",
}


def used_of(*names: str) -> set[str]:
    """Attributes that modules of the systems take from objects of these names: `tbe`, `self.tbe` or `a.b.tbe`."""
    nodes = [node for path in (ROOT / "systems").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith(names)}


def test_parts_of_a_tbe_and_operators_that_the_product_uses_are_named_here_and_there() -> None:
    parts = set(TBE_PARTS.split())
    assert used_of("tbe") - set(dir(torch.nn.Module)) <= parts
    assert used_of("torch.ops.fbgemm") == OPERATORS
    tbe = build_tbe(
        [(8, 4)],
        table_of_feature=[0],
        pooling=PoolingType.SUM,
        optimizer=SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.1),
        device=torch.device("cpu"),
    )
    assert {name for name in parts if not hasattr(tbe, name)} == set()
    assert {name for name in OPERATORS if not hasattr(torch.ops.fbgemm, name)} == set()
