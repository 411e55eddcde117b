"""Rows in page-locked memory. On a CPU there is nothing to pin; what is asked of CUDA is recorded by a stand-in."""

import mmap
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from systems.freq_cache.tiers import slow_tier
from systems.freq_cache.tiers.slow_tier import PinnedTier, RowLayout

LAYOUT = RowLayout(8, torch.float32, {"sum": 1})
CUDA = torch.device("cuda:0")


class Runtime:
    """CUDA's runtime as far as pinning goes."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.registered: dict[int, int] = {}
        self.calls: list[str] = []
        self.last_error = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append("register")
        if not self.answer:
            self.registered[address] = size
        self.last_error = self.answer or self.last_error
        return self.answer

    def launch(self, *_: object, device: torch.device) -> None:
        """A kernel, whose check takes the last error of whatever came before."""
        self.last_error, found = 0, self.last_error
        if found:
            raise RuntimeError("CUDA error: out of memory")

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append("unregister")
        del self.registered[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    made = Runtime()
    cuda = SimpleNamespace(
        cudart=lambda: made, synchronize=lambda device: made.calls.append("synchronize"), device=lambda _: nullcontext()
    )
    seen = SimpleNamespace(cuda=cuda, as_tensor=lambda seen, device: torch.from_numpy(as_numpy(seen)), ones=made.launch)
    monkeypatch.setattr(slow_tier, "torch", SimpleNamespace(**{**vars(torch), **vars(seen)}))
    yield made


def as_numpy(seen: object) -> np.ndarray:
    """What a device would see, by the same address."""
    described = dict(seen.__cuda_array_interface__)  # type: ignore[attr-defined]
    return np.asarray(SimpleNamespace(__array_interface__=described))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_all_of_the_block_is_registered_and_seen_where_it_is(runtime: Runtime, dtype: torch.dtype) -> None:
    layout = RowLayout(8, dtype, {"sum": 1})
    tier = PinnedTier(50, layout, CUDA)
    assert runtime.registered == {tier.records.data_ptr(): 50 * layout.record_bytes}
    assert tier.records.data_ptr() % mmap.PAGESIZE == 0  # a page that two blocks shared could be registered once only
    tier.write(torch.tensor([7]), torch.full((1, layout.width), 2.0, dtype=dtype))
    assert tier.on_device.dtype == dtype
    assert torch.equal(tier.on_device, tier.records)
    assert tier.on_device.data_ptr() == tier.records.data_ptr()


def test_device_that_would_see_a_copy_is_refused(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = {"as_tensor": lambda seen, device: torch.from_numpy(as_numpy(seen).copy())}
    monkeypatch.setattr(slow_tier, "torch", SimpleNamespace(**{**vars(slow_tier.torch), **copies}))
    with pytest.raises(RuntimeError, match="cuda:0 does not see pinned rows where the host has them: keep the rows"):
        PinnedTier(50, LAYOUT, CUDA)
    assert not runtime.registered


def test_memory_is_let_go_of_once_and_when_the_device_is_done(runtime: Runtime) -> None:
    tier = PinnedTier(50, LAYOUT, CUDA)
    tier.close()
    tier.close()
    assert runtime.calls == ["register", "synchronize", "unregister"]
    assert not runtime.registered


def test_memory_that_cannot_be_pinned_is_named_with_the_remedy(runtime: Runtime) -> None:
    runtime.answer = 2
    with pytest.raises(
        MemoryError, match=r"1,800 bytes of host memory cannot be pinned .*: give less, raise the limit"
    ):
        PinnedTier(50, LAYOUT, CUDA)
    runtime.launch(device=CUDA)  # of whoever goes on with rows that are pageable
