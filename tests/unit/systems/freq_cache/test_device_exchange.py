"""Training whose rows the device copies by itself is training whose rows the host copies. On a CPU Triton interprets.

`tests/virtual_cuda/test_orders.py` has the same on a device that does everything as late as it may.
"""

import pytest
import torch

from systems.contract import OptimizerKind
from systems.freq_cache import arguments
from tests.contract.scenes import assert_same, ragged, snapshot, spec_of, train

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the variant is refused; Triton runs its kernel there all the same."""
    if device.type == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        refused = arguments.refused
        monkeypatch.setattr(arguments, "refused", lambda spec: "" if spec.device.type == "cpu" else refused(spec))
    import systems.freq_cache.tiers.copy_kernels  # noqa: F401 - in this environment


@pytest.mark.parametrize(
    ("kind", "slow_rows"),
    [
        (OptimizerKind.SGD, "fp32"),
        (OptimizerKind.ROWWISE_ADAGRAD, "fp32"),
        (OptimizerKind.ROWWISE_ADAGRAD, "fp16"),
        (OptimizerKind.ADAGRAD, "int8"),
    ],
)
def test_rows_and_state_are_those_of_the_staged_way_bit_for_bit(
    kind: OptimizerKind, slow_rows: str, device: torch.device
) -> None:
    found = []
    for exchange in ("device", "staged"):
        name = f"freq_cache[copy_engine={exchange},policy=lru,slow_rows={slow_rows},tier=pinned]"
        system, spec = spec_of(name, device=device, kind=kind)
        trained = system(spec)
        pooled = [train(trained, ragged(seed, batch=2, longest=2), seed) for seed in range(8)]
        assert trained.counters().rows_written_back > 0
        found.append((pooled, snapshot(trained)))
    (by_device, rows_by_device), (staged, rows_staged) = found
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(by_device, staged, strict=True))
    assert_same(rows_by_device, rows_staged)

