"""What the contract's values refuse and compute."""

import re
from dataclasses import replace

import pytest
import torch
from torchrec import EmbeddingBagConfig, PoolingType
from torchrec.types import DataType

from systems.contract import CacheRatio, DeviceBytes, HostBytes, OptimizerKind, SparseOptimizer, Verdict
from systems.fbgemm.tbe_system import FullGPU
from systems.reference import ReferenceSystem
from systems.spec import row_bytes_of, row_type_of
from tests.contract.scenes import spec, table


def test_budgets_outside_their_range_are_refused() -> None:
    for ratio in (0.0, -0.1, 1.0001, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="outside"):
            CacheRatio(ratio=ratio)
    for budget in (DeviceBytes, HostBytes):
        for total in (0, -1):
            with pytest.raises(ValueError, match="not positive"):
                budget(total_bytes=total)


def test_bytes_of_a_setting_by_hand_whose_half_rows_take_two_an_element_and_their_state_still_four() -> None:
    whole, half = table("a", 10, 4), table("b", 3, 8, half=True)
    assert (row_type_of(whole), row_bytes_of(whole)) == (torch.float32, 16)
    assert (row_type_of(half), row_bytes_of(half)) == (torch.float16, 16)
    built = spec(whole, half, kind=OptimizerKind.ADAGRAD)
    assert (built.rows, built.row_bytes, built.state_bytes) == (13, 10 * 16 + 3 * 16, 10 * 16 + 3 * 32)
    assert spec(whole, half, kind=OptimizerKind.ROWWISE_ADAGRAD).state_bytes == 13 * 4


def config(**changes: object) -> EmbeddingBagConfig:
    made = table("t", 5, 8, "f")
    for name, value in changes.items():
        setattr(made, name, value)  # torchrec's own constructor trips over some of these
    return made


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ((), "no tables"),
        ((config(), config(feature_names=["g"])), "table name used twice: t"),
        ((config(feature_names=[]),), "table t serves no feature"),
        ((config(num_embeddings=0),), "table t has 0 rows"),
        ((config(embedding_dim=0),), "table t has 5 rows of width 0"),
        ((config(data_type=DataType.BF16),), "BF16 are not supported, use FP32 or FP16"),
    ],
)
def test_tables_that_no_system_can_have_are_refused(tables: tuple[EmbeddingBagConfig, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        spec(*tables)


@pytest.mark.parametrize(
    ("tables", "optimizer", "complaint"),
    [
        ((config(), config(name="u")), {}, "used twice: f"),
        ((config(feature_names=["f", "f"]),), {}, "used twice: f"),
        ((config(embedding_dim=6),), {}, "6 is not a multiple of 4"),
        ((config(pooling=PoolingType.NONE),), {}, "use SUM"),
        ((config(pooling=PoolingType.MEAN),), {}, "table t: .* pools rows by their sum, use SUM"),
        ((config(), table("narrow", 3, 4)), {}, "takes tables of one width"),
        ((config(), table("half", 3, 4, half=True)), {}, "keeps rows in float32: change the data_type of half"),
        ((config(),), {"weight_decay": 0.1}, "no weight decay"),
        ((config(),), {"max_gradient": 1.0}, "cuts no gradient"),
    ],
)
def test_systems_refuse_what_only_torchrecs_modules_take(
    tables: tuple[EmbeddingBagConfig, ...], optimizer: dict[str, float], complaint: str
) -> None:
    asked = replace(spec(*tables), optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=0.1, **optimizer))
    for system in (ReferenceSystem, FullGPU):
        found = system.support(asked)
        assert found.verdict is Verdict.UNSUPPORTED
        assert re.search(complaint, found.reason)
        assert "takes no per-sample weights" in system.support(replace(asked, weighted=True)).reason
