"""Rows exchanged by the device are, bit for bit, those that torch gathers and scatters. On a CPU Triton interprets."""

from __future__ import annotations

import mmap
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

TYPES = (torch.float32, torch.float16, torch.int32, torch.uint8)


@pytest.fixture(scope="module")
def exchange(device: torch.device) -> ModuleType:
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        if device.type == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        from systems.freq_cache import exchange
    return exchange


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
    exchange: ModuleType,
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
        patch.setattr(exchange, "PROGRAMS", programs)
        patch.setattr(exchange, "_WORDS", 2048)  # so few that a program takes several blocks
        exchange.gather(records, rows, out)
        assert torch.equal(bits(out), bits(records)[rows.cpu()])
        expected = bits(records).clone()
        expected[rows.cpu()] = bits(values)
        exchange.scatter(records, rows, values)
    assert torch.equal(bits(records), expected)


def test_rows_beyond_the_reach_of_32_bits_are_found(exchange: ModuleType) -> None:
    if torch.cuda.is_available():
        pytest.skip("the kernel is compiled here: memory of the host is not its to read")
    width, last = 3, 2**31 // 3 + 10  # elements are bytes
    block = mmap.mmap(-1, (last + 1) * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    records = torch.frombuffer(block, dtype=torch.uint8).view(-1, width)
    rows = torch.tensor([last, 5])
    values = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8)
    exchange.scatter(records, rows, values)
    assert torch.equal(records[rows], values)
    out = torch.empty_like(values)
    exchange.gather(records, rows, out)
    assert torch.equal(out, values)
