"""The process group of a cell's ranks."""

import os
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from suite.records.record import Cell
from suite.records.scales import scale_of

Value = TypeVar("Value")


def join(cell: Cell, folder: Path) -> torch.device:
    """Join the group. Returns the device of this rank.

    gloo transfers tensors on the host, NCCL tensors on a GPU. A collective times out before a cell may be silent for
    too long; gloo's own timeout is half an hour.
    """
    device = torch.device("cpu")
    if cell.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        init_method="env://" if cell.rendezvous else f"file://{folder}/group",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=0.75 * scale_of(cell.scale, on_drive=False).stall_s),
    )
    return device


def mean(value: float) -> float:
    """Mean of the values of all ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def gathered(tensor: Tensor) -> Tensor:
    """Concatenation of the tensors of all ranks, all of one shape, in order of rank, along the first dimension."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def of_all(value: Value) -> list[Value]:
    """The values of all ranks, in order of rank, transferred as pickles."""
    found: list[Value] = [value] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
