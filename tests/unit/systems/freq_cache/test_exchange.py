"""Rows copied by the device are, bit for bit, those that torch and the host copy. On a CPU Triton interprets."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from systems.contract import OptimizerKind
from systems.freq_cache import arguments
from systems.freq_cache.cache.staging import EvictStaging, FetchStaging, Transfer
from systems.freq_cache.tiers.slow_tier import PinnedTier, RowLayout
from tests.contract.scenes import assert_same, ragged, snapshot, spec_of, train

ROOT = Path(__file__).resolve().parents[4]
TYPES = (torch.float32, torch.float16, torch.int32, torch.uint8)


@pytest.fixture(scope="module", name="copy_kernels")
def copy_kernels_module(device: torch.device) -> ModuleType:
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        if device.type == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        from systems.freq_cache.tiers import copy_kernels
    return copy_kernels


def records_of(rows: int, width: int, dtype: torch.dtype, device: torch.device, *, seed: int) -> torch.Tensor:
    """Any bits, those of NaNs among them."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(256, (rows, width * dtype.itemsize), dtype=torch.uint8, generator=draw)
    return found.view(dtype).to(device)


def bits(records: torch.Tensor) -> torch.Tensor:
    return records.cpu().view(torch.uint8)


@settings(max_examples=60)
@given(
    all_rows=st.integers(1, 90),
    width=st.sampled_from([1, 3, 4, 16, 33, 128, 129, 1025]),
    dtype=st.sampled_from(TYPES),
    programs=st.integers(1, 3),
    data=st.data(),
)
def test_what_is_gathered_and_scattered_is_what_torch_says(
    copy_kernels: ModuleType,
    device: torch.device,
    all_rows: int,
    width: int,
    dtype: torch.dtype,
    programs: int,
    data: st.DataObject,
) -> None:
    order = data.draw(st.permutations(range(all_rows)))
    rows = torch.tensor(order[: data.draw(st.integers(0, all_rows))], dtype=torch.int64, device=device)
    records = records_of(all_rows, width, dtype, device, seed=1)
    values = records_of(rows.numel(), width, dtype, device, seed=2)
    out = torch.empty_like(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_kernels, "PROGRAMS", programs)
        patch.setattr(copy_kernels, "_WORDS", 2048)  # so few that a program takes several blocks
        copy_kernels.copy_rows(records, rows, out, gathers=True)
        assert torch.equal(bits(out), bits(records)[rows.cpu()])
        expected = bits(records).clone()
        expected[rows.cpu()] = bits(values)
        copy_kernels.copy_rows(records, rows, values, gathers=False)
    assert torch.equal(bits(records), expected)


def test_rows_beyond_the_reach_of_32_bits_are_found(copy_kernels: ModuleType) -> None:
    if torch.cuda.is_available():
        pytest.skip("the kernel is compiled here: memory of the host is not its to read")
    width, last = 3, 2**31 // 3 + 10  # elements are bytes
    block = mmap.mmap(-1, (last + 1) * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    records = torch.frombuffer(block, dtype=torch.uint8).view(-1, width)
    rows = torch.tensor([last, 5])
    values = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8)
    copy_kernels.copy_rows(records, rows, values, gathers=False)
    assert torch.equal(records[rows], values)
    out = torch.empty_like(values)
    copy_kernels.copy_rows(records, rows, out, gathers=True)
    assert torch.equal(out, values)


class Launches:
    """Stands before the kernel and notes what Triton compiles it anew for: types, constants, memory at 16 bytes."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.kinds: set[tuple[object, ...]] = set()

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(
            records: Tensor, rows: Tensor, packed: Tensor, count: int, *constants: object, num_warps: int
        ) -> None:
            aligned = (records.data_ptr() % 16 == 0, packed.data_ptr() % 16 == 0)
            self.kinds.add((records.dtype, rows.dtype, packed.dtype, *aligned, *constants, num_warps))
            self.kernel[grid](records, rows, packed, count, *constants, num_warps=num_warps)

        return launch


@pytest.mark.parametrize(("state", "kernels"), [({}, 2), ({"sum": 1}, 4)])
def test_no_step_launches_a_kernel_that_was_not_compiled_when_the_rows_were_pinned(
    copy_kernels: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch, state: dict[str, int], kernels: int
) -> None:
    launches = Launches(copy_kernels._exchange)
    monkeypatch.setattr(copy_kernels, "_exchange", launches)
    layout = RowLayout(4, torch.float32, state)  # records of 16 or 20 bytes
    tier, transfer = PinnedTier(50, layout, device, by_kernel=True), Transfer(device)
    assert not tier.records.any()
    compiled = set(launches.kinds)
    assert len(compiled) == kernels
    entry, leaving = FetchStaging(9, tier, transfer), EvictStaging(9, layout, transfer)
    compute = transfer.compute()
    for held, count in ((0, 1), (1, 3), (4, 5)):
        rows = torch.arange(count)
        entry.add(rows, rows.int().to(device), place=held)
        leaving.scatter(leaving.room(count, compute).zero_(), tier, rows.int().to(device), compute)
    assert launches.kinds == compiled


@pytest.mark.parametrize(
    ("kind", "slow_rows"),
    [
        (OptimizerKind.SGD, "fp32"),
        (OptimizerKind.ROWWISE_ADAGRAD, "fp32"),
        (OptimizerKind.ROWWISE_ADAGRAD, "fp16"),
        (OptimizerKind.ADAGRAD, "int8"),
    ],
)
@pytest.mark.usefixtures("copy_kernels")
def test_training_by_the_device_leaves_rows_and_state_of_the_staged_way_bit_for_bit(
    kind: OptimizerKind, slow_rows: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU refuses the variant. `tests/cuda/test_orders.py` has the same on a device that is always late."""
    refusals = arguments.refusals
    monkeypatch.setattr(arguments, "refusals", lambda spec: () if spec.device.type == "cpu" else refusals(spec))
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


COMPILES = """
from itertools import product
from triton import compile, next_power_of_2
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from systems.freq_cache.tiers import copy_kernels

pointers = {"records": "*i32", "rows": "*i32", "packed": "*i32", "count": "i32"}
aligned = {(at,): [["tt.divisibility", 16]] for at in (0, 2)}
for width, gathers, capability in product((128, 129), (False, True), (80, 90)):
    columns = next_power_of_2(width)
    constants = {"width": width, "columns": columns, "block": copy_kernels._WORDS // columns, "gathers": gathers}
    signature = {**pointers, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(copy_kernels._exchange, signature, constants, aligned)
    made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": copy_kernels._WARPS})
    print(width, len(made.asm["cubin"]) > 0, "ld.global.v4" in made.asm["ptx"], "st.global.v4" in made.asm["ptx"])
"""


@pytest.mark.slow
def test_it_compiles_with_accesses_of_16_bytes_where_records_are_multiples_of_that(tmp_path: Path) -> None:
    """For an A100 and an H100, none of which is needed for that; in a process of its own, where nothing interprets."""
    pytest.importorskip("triton")
    script = tmp_path / "compiles.py"  # Triton reads the source of what it compiles
    script.write_text(COMPILES)
    own = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=os.environ | own, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["128 True True True"] * 4 + ["129 True False False"] * 4
