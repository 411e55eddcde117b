"""Every private part of other packages that the product uses is named here, and is still what the product takes it for.

A private part is a name that begins with an underscore, numba's and llvmlite's ways of writing machine code, and what
fbgemm's and torchrec's modules have and their documentation does not promise. The bounds in `pyproject.toml` end with
the versions that this passed with.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from llvmlite import ir
from numba.core import base, typing
from numba.core.registry import cpu_target
from packaging.requirements import Requirement
from torch.autograd import Variable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchrec import EmbeddingBagConfig

from systems.colossalai_cache.library import library
from systems.colossalai_cache.system import ColossalAICache
from systems.fbgemm.tbe import TBE
from systems.freq_cache import compiled as cache_loops
from systems.full_gpu import FullGPU
from systems.spec import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec
from systems.torchrec_uvm import TorchrecUVM, sharded_in
from workloads.streams import draws as workload_loops

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path: ast.parse(path.read_text())
    for path in chain.from_iterable((ROOT / room).rglob("*.py") for room in ("suite", "systems", "workloads"))
}

TABLE = EmbeddingBagConfig(name="users", num_embeddings=8, embedding_dim=4, feature_names=["user"])

UNDERSCORED = {
    "colossalai": {
        "_cache_miss",
        "_cpu_to_cuda_numel",
        "_cuda_to_cpu_numel",
        "_reset_comm_stats",
        "_total_cache",
        "_weight",
    },
    "numba": {"_cache", "_cache_file", "_nrt", "_version"},
    "torch": {
        "_C",
        "_assert_async",
        "_current_graph_task_id",
        "_execution_engine",
        "_indices",
        "_is_in_bad_fork",
        "_python_dispatch",
        "_pytree",
        "_schema",
        "_values",
        "_version",
    },
    "torchrec": {"_config", "_emb_modules", "_lookups"},
}
"""Attributes, arguments and modules by package."""
DOCUMENTED = {"_current_frames", "_exit", "_fields", "_getframe", "_replace"}
"""Python promises these: of `os`, of named tuples, and of `sys`."""
OWN = {"_part_of_rank"}
"""What the product itself hangs on objects of others."""

TBE_PARTS = {
    bool: "gather_uvm_cache_stats prefetch_pipeline use_cpu uvm_host_mapped",
    int: "bounds_check_mode_int total_hash_size total_hash_size_bits",
    list: "embedding_specs feature_table_map timesteps_prefetched weights_physical_offsets momentum1_physical_offsets",
    torch.Tensor: "cache_index_table_map cache_miss_counter hash_size_cumsum iter iter_cpu lxu_cache_locations "
    "lxu_cache_locking_counter lxu_cache_state lxu_cache_weights lxu_state rows_per_table uvm_cache_stats "
    "weights_dev weights_host weights_offsets weights_uvm momentum1_dev momentum1_host momentum1_offsets momentum1_uvm",
    torch.device: "current_device",
    object: "cache_algorithm optimizer prefetch_stream record_cache_metrics weights_precision",
    Callable: "flush get_optimizer_state prefetch reset_cache_states set_learning_rate split_embedding_weights "
    "split_optimizer_states update_hyper_parameters",
}
"""What a TBE has, by type."""

_TRAINING = "fbgemm_gpu.split_table_batched_embeddings_ops_training"
_SHARDED = "torchrec.distributed.embeddingbag:ShardedEmbeddingBagCollection"
SIGNATURES = {
    "llvmlite.ir:Function": "module ftype name",
    "llvmlite.ir:FunctionType": "return_type args",
    "llvmlite.ir:IRBuilder.add": "self lhs rhs",
    "llvmlite.ir:IRBuilder.call": "self fn args",
    "llvmlite.ir:IRBuilder.ctlz": "self cond flag",
    "llvmlite.ir:IRBuilder.inttoptr": "self value typ",
    "llvmlite.ir:IRBuilder.mul": "self lhs rhs",
    "llvmlite.ir:IRBuilder.ptrtoint": "self value typ",
    "llvmlite.ir:IRBuilder.sub": "self lhs rhs",
    "llvmlite.ir:IntType": "bits",
    "llvmlite.ir:IntType.as_pointer": "self",
    "numba.core.base:BaseContext.get_dummy_value": "self",
    "numba.core.base:BaseContext.make_array": "self typ",
    "numba.core.base:BaseContext.refresh": "self",
    "numba.core.cgutils:unpack_tuple": "builder tup count",
    "numba.core.typing.context:BaseContext.refresh": "self",
    f"{_TRAINING}:RecordCacheMetrics": "record_cache_miss_counter record_tablewise_cache_miss",
    f"{_TRAINING}:SplitTableBatchedEmbeddingBagsCodegen": "embedding_specs * beta1 beta2 bounds_check_mode "
    "cache_algorithm cache_load_factor cache_sets device eps feature_table_map gather_uvm_cache_stats "
    "gradient_clipping learning_rate max_gradient optimizer output_dtype pooling_mode prefetch_pipeline "
    "record_cache_metrics stochastic_rounding uvm_host_mapped weight_decay weight_decay_mode weights_precision",
    f"{_TRAINING}:SplitTableBatchedEmbeddingBagsCodegen.forward": "self indices offsets per_sample_weights",
    f"{_TRAINING}:SplitTableBatchedEmbeddingBagsCodegen.prefetch": "self indices offsets * forward_stream",
    f"{_TRAINING}:construct_split_state": "embedding_specs * rowwise cacheable",
    "torchrec.distributed.dist_data:KJTAllToAll": "pg splits",
    "torchrec.distributed.dist_data:PooledEmbeddingsAllToAll": "pg dim_sum_per_rank device",
    "torchrec.distributed.embedding_sharding:bucketize_kjt_before_all2all": "kjt * num_buckets block_sizes "
    "block_bucketize_row_pos",
    f"{_SHARDED}.compute_and_output_dist": "self ctx input",
    f"{_SHARDED}.create_context": "self",
    f"{_SHARDED}.input_dist": "self ctx features",
    f"{_SHARDED}.prefetch": "self dist_input * forward_stream ctx",
    "torchrec.modules.embedding_modules:get_embedding_names_by_table": "tables",
    "torchrec.modules.embedding_modules:reorder_inverse_indices": "inverse_indices feature_names",
}
"""Parameters that the product gives: by place, and behind `*` by name."""

SCHEMAS = {
    "lxu_cache_locking_counter_decrement": "(Tensor(a!) lxu_cache_locking_counter, Tensor lxu_cache_locations) -> ()",
    "FloatToFused8BitRowwiseQuantized": "(Tensor t) -> Tensor",
    "Fused8BitRowwiseQuantizedToFloat": "(Tensor input) -> Tensor",
}
"""Operators of fbgemm."""


NODES = [(path, node) for path, tree in SOURCES.items() for node in ast.walk(tree)]


def dotted(node: ast.expr) -> str:
    """`a.b.c`; of anything else than names, what follows it."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(names)])


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(tree: ast.Module) -> set[str]:
    """Private names that a module defines."""
    nodes = list(ast.walk(tree))
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value)
    }
    return functions | stored | {node.id for node in nodes if isinstance(node, ast.Name)}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def underscored() -> set[str]:
    """Private names that a module of the product takes from an object, an import or a function, and does not define."""
    found: set[str] = set()
    own = {path: own_names(tree) for path, tree in SOURCES.items()}
    for path, node in NODES:
        names: list[str] = []
        if isinstance(node, ast.Attribute) and not is_self(node.value):
            names = [node.attr]
        elif isinstance(node, ast.keyword) and node.arg:
            names = [node.arg]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        found |= {name for name in names if is_private(name) and name not in own[path]}
    return found


def built(system: type[Any]) -> Any:
    kind = OptimizerKind.SGD if system is ColossalAICache else OptimizerKind.ROWWISE_ADAGRAD
    return system(
        SystemSpec(
            tables=(TABLE,),
            optimizer=SparseOptimizer(kind=kind, lr=0.1),
            device=torch.device("cpu"),
            budget=CacheRatio(ratio=0.5),
            batch_lookups=4,
            frequencies={TABLE.name: torch.ones(TABLE.num_embeddings, dtype=torch.int64)},
            parameters={name: values[0] for name, values in system.variants.items()},
        )
    )


def test_private_names_that_the_product_takes_from_others_are_named_here() -> None:
    assert underscored() - OWN - DOCUMENTED == set().union(*UNDERSCORED.values())


def test_parts_of_a_tbe_that_the_product_uses_are_named_here() -> None:
    used = {
        node.attr
        for _, node in NODES
        if isinstance(node, ast.Attribute) and dotted(node.value).rpartition(".")[2] in ("tbe", "_tbe")
    }
    named = set(" ".join(TBE_PARTS.values()).split())
    assert used - set(dir(torch.nn.Module)) <= named


def test_what_the_product_writes_machine_code_with_is_named_here() -> None:
    inner = {path for path, node in NODES if isinstance(node, ast.ImportFrom) and is_inner(node.module or "")}
    assert {path.name for path in inner} == {"compiled.py", "forkserver.py"}
    objects = ("builder", "cgutils", "context", "cpu_target", "ir")
    used = {
        node.attr
        for path, node in NODES
        if path in inner and isinstance(node, ast.Attribute) and dotted(node.value) in objects
    }
    named = {path.partition(":")[2].rpartition(".")[2] for path in SIGNATURES}
    assert used - named == {"VoidType", "module", "target_context", "typing_context"}
    assert isinstance(cpu_target.typing_context, typing.context.BaseContext)
    assert isinstance(cpu_target.target_context, base.BaseContext)
    assert "llvm.prefetch.p0" not in ir.Module().globals
    assert ir.IRBuilder(ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "f").append_basic_block()).module


def is_inner(module: str) -> bool:
    return module.partition(".")[0] == "llvmlite" or module.startswith("numba.core")


def test_operators_of_fbgemm_that_the_product_uses_are_named_here() -> None:
    used = {
        node.attr for _, node in NODES if isinstance(node, ast.Attribute) and dotted(node.value) == "torch.ops.fbgemm"
    }
    assert used == set(SCHEMAS)


@pytest.mark.parametrize(("kind", "names"), TBE_PARTS.items(), ids=[kind.__name__ for kind in TBE_PARTS])
def test_tbe_has_what_the_product_reads_and_replaces(kind: type, names: str) -> None:
    (tbe,) = built(FullGPU).tbes
    for name in names.split():
        assert isinstance(getattr(tbe, name), kind), name


@pytest.mark.parametrize("path", SIGNATURES)
def test_function_takes_what_the_product_gives(path: str) -> None:
    module, _, names = path.partition(":")
    found: Any = import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    by_place, _, by_name = (part.split() for part in SIGNATURES[path].partition("*"))
    taken = list(inspect.signature(found).parameters)
    assert taken[: len(by_place)] == by_place
    assert set(by_name) <= set(taken)


@pytest.mark.parametrize("name", SCHEMAS)
def test_operator_of_fbgemm_takes_what_the_product_gives(name: str) -> None:
    assert str(getattr(torch.ops.fbgemm, name).default._schema) == f"fbgemm::{name}{SCHEMAS[name]}"


def test_split_state_says_where_rows_of_tables_begin() -> None:
    assert {"host_size", "offsets"} <= set(import_module(_TRAINING).SplitState._fields)


def twice(number: int) -> int:
    return number + number


@pytest.mark.parametrize("compiled", [cache_loops.compiled, workload_loops.compiled], ids=["cache", "workloads"])
def test_compiled_loop_says_by_which_source_it_was_compiled(compiled: Callable[..., Any]) -> None:
    loop = compiled(twice)
    assert loop._cache._cache_file._version.startswith(f"{numba.__version__} ")
    assert loop(2) == 4


def test_torch_has_the_private_parts_that_are_used() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), (3, 2), check_invariants=True)
    assert sparse._indices().tolist() == [[1]]
    assert sparse._values().tolist() == [[1.0, 1.0]]
    with pytest.raises(RuntimeError, match="not so"):
        torch._assert_async(torch.tensor(False), "not so")
    assert [leaf.item() for leaf in tree_leaves([torch.tensor(1), (torch.tensor(2),)])] == [1, 2]
    assert torch.ops.aten.add.Tensor._schema.name == "aten::add"
    ended: list[None] = []
    number = torch.ones(1, requires_grad=True)
    doubled = 2 * number
    doubled.register_hook(lambda _: Variable._execution_engine.queue_callback(lambda: ended.append(None)))
    number.register_hook(lambda _: ended.extend([] if not ended else [None, None]))  # comes before backward has ended
    doubled.backward()
    assert len(ended) == 1
    parameters = [*inspect.signature(TorchDispatchMode.__torch_dispatch__).parameters]
    assert parameters == ["self", "func", "types", "args", "kwargs"]


def test_torch_says_that_backward_runs_calls_back_at_its_end_and_counts_writes() -> None:
    told: list[object] = []
    value = torch.ones(1, requires_grad=True) * 2
    value.register_hook(lambda _: told.append(torch._C._current_graph_task_id() >= 0))
    assert value.grad_fn is not None
    value.grad_fn.register_prehook(
        lambda _: torch.autograd.Variable._execution_engine.queue_callback(partial(told.append, "end"))
    )
    value.backward()
    assert told == [True, "end"]
    assert torch._C._current_graph_task_id() < 0
    written = torch.zeros(2)
    before = written._version
    written[:1].copy_(torch.ones(1))
    assert written._version > before


def test_torchrec_keeps_its_tbes_where_the_product_finds_them() -> None:
    sharded = sharded_in(built(TorchrecUVM)._parallel[0])
    (kernel,) = sharded._lookups[0]._emb_modules
    assert [table.name for table in kernel._config.embedding_tables] == [TABLE.name]
    assert isinstance(kernel.emb_module, TBE)


def test_colossalai_counts_where_the_product_reads() -> None:
    bag, _ = library()
    assert "_weight" in inspect.signature(bag).parameters
    (cache,) = built(ColossalAICache)._caches
    cache._manager._reset_comm_stats()
    counts = UNDERSCORED["colossalai"] - {"_weight", "_reset_comm_stats"}
    assert {name: int(getattr(cache._manager, name)) for name in counts} == dict.fromkeys(counts, 0)


@pytest.mark.parametrize("name", ["numba", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu"])
def test_packages_whose_private_parts_are_used_have_an_upper_bound(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (asked,) = [
        requirement
        for requirement in map(Requirement, [*project["dependencies"], *extras["cpu"], *extras["cuda"]])
        if requirement.name == name
    ]
    assert any(bound.operator == "<" for bound in asked.specifier)
    if name not in ("fbgemm-gpu", "fbgemm-gpu-cpu"):
        assert version(name).partition("+")[0] in asked.specifier
