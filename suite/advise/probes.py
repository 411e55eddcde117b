"""What a machine can do, measured with plain operations in a second: gather, copies, launches, products."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from suite.advise.calibration import Probes
from suite.run.cell.training import synchronize

_ROW_VALUES = 128
_GATHERED_ROWS = 1 << 16
_TABLE_ROWS = 1 << 19
"""256 MiB: beyond any processor's caches."""
_COPY_VALUES = 1 << 24
_MATRIX = {"cpu": 1024, "cuda": 8192}
_LAUNCHES = 2000
_REPEATS = 7


def measure(device: torch.device) -> Probes:
    """Measure the machine that this process runs on."""
    generator = torch.Generator().manual_seed(0)
    table = torch.zeros(_TABLE_ROWS, _ROW_VALUES)
    picked = torch.empty(_GATHERED_ROWS, _ROW_VALUES)
    rows = [torch.randint(_TABLE_ROWS, (_GATHERED_ROWS,), generator=generator) for _ in range(_REPEATS + 1)]
    turn = iter(rows)
    gather_s = _seconds(lambda: torch.index_select(table, 0, next(turn), out=picked), device)
    host = torch.ones(_COPY_VALUES, pin_memory=device.type == "cuda")
    on_device, other = torch.ones(_COPY_VALUES, device=device), torch.ones(_COPY_VALUES, device=device)
    tiny = torch.zeros(1, device=device)
    side = _MATRIX[device.type]
    left, right = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
    product = torch.empty(side, side, device=device)

    def launches() -> None:
        for _ in range(_LAUNCHES):
            tiny.add_(1)

    return Probes(
        gather_gb_per_s=picked.nbytes / gather_s / 1e9,
        to_device_gb_per_s=_copied(host, on_device, device),
        to_host_gb_per_s=_copied(on_device, host, device),
        memory_gb_per_s=2 * _copied(on_device, other, device),
        launch_s=_seconds(launches, device) / _LAUNCHES,
        matmul_flops=2 * side**3 / _seconds(lambda: torch.matmul(left, right, out=product), device),
    )


def _copied(source: Tensor, target: Tensor, device: torch.device) -> float:
    """GB/s of a copy, bytes counted once."""
    return source.nbytes / _seconds(lambda: target.copy_(source, non_blocking=True), device) / 1e9


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median duration, the first left out."""
    found = []
    for _ in range(_REPEATS + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        found.append(time.perf_counter() - start)
    return median(found[1:])
