"""Batches in memory that two processes share.

The memory has no name (`memfd_create`): nothing can be left behind in /dev/shm however the processes end, and the 64 MB
that containers give to /dev/shm do not limit it.
"""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from workloads.batch import Batch

_ALIGNMENT = 64


@dataclass(frozen=True)
class Contents:
    """The content of a slot: keys and samples of the features, and the arrays by dtype and shape, one after another.

    The arrays are dense, labels and values, and unless every bag has one id lengths and offsets.
    """

    keys: tuple[str, ...]
    stride: int
    arrays: tuple[tuple[str, tuple[int, ...]], ...]


class Slot:
    """A piece of shared memory without a name. It grows with what is put in; one process uses it at a time."""

    def __init__(self, handle: int | None = None) -> None:
        self._handle = os.memfd_create("batch") if handle is None else handle
        self._map: mmap.mmap | None = None

    def __reduce__(self) -> tuple[Callable[[Any], "Slot"], tuple[Any]]:
        """Into a process that is being spawned, the file descriptor goes along."""
        return _received, (reduction.DupFd(self._handle),)

    def put(self, batch: Batch) -> Contents:
        """Write a batch into the memory; returns what it takes to read it back.

        Raises:
            ValueError: the batch has weights.
        """
        features = batch.features
        if features.weights_or_none() is not None:
            raise ValueError("batches with weights cannot be produced ahead: make them in the training process")
        tensors = [batch.dense, batch.labels, features.values()]
        if not _one_id_per_bag(features):
            tensors += [features.lengths(), features.offsets()]
        arrays = [tensor.numpy() for tensor in tensors]
        contents = Contents(
            keys=tuple(features.keys()),
            stride=features.stride(),
            arrays=tuple((array.dtype.str, array.shape) for array in arrays),
        )
        for view, array in zip(self._views(contents), arrays, strict=True):
            view[...] = array
        return contents

    def get(self, contents: Contents, *, pin_memory: bool) -> Batch:
        """A copy of the batch that is here; batches of a size whose bags have one id each share lengths and offsets."""
        found = [torch.from_numpy(view) for view in self._views(contents)]
        copies = [torch.empty(view.shape, dtype=view.dtype, pin_memory=pin_memory).copy_(view) for view in found]
        dense, labels, values, *bags = copies
        lengths, offsets = bags or _one_each(values.numel(), pin_memory=pin_memory)
        features = KeyedJaggedTensor(
            keys=list(contents.keys), values=values, lengths=lengths, offsets=offsets, stride=contents.stride
        )
        if pin_memory:
            features.length_per_key()  # cached here and carried along; asked of ids on the device it would wait
        return Batch(dense, features, labels)

    def close(self) -> None:
        """Give the memory back."""
        self._map = None
        os.close(self._handle)

    def _views(self, contents: Contents) -> list[np.ndarray]:
        starts, end = [], 0
        for dtype, shape in contents.arrays:
            starts.append(end)
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        memory = self._mapped(end)
        return [
            np.ndarray(shape, dtype, buffer=memory, offset=start)
            for (dtype, shape), start in zip(contents.arrays, starts, strict=True)
        ]

    def _mapped(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            if os.fstat(self._handle).st_size < size:
                os.ftruncate(self._handle, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._map = mmap.mmap(self._handle, 0)
        return self._map


def _received(handle: Any) -> Slot:  # noqa: ANN401 - what DupFd returns has no public type
    return Slot(handle.detach())


@lru_cache(maxsize=4)
def _one_each(bags: int, *, pin_memory: bool) -> tuple[Tensor, Tensor]:
    """Lengths and offsets of bags with one id each."""
    lengths, offsets = torch.ones(bags, dtype=torch.int64), torch.arange(bags + 1, dtype=torch.int64)
    return (lengths.pin_memory(), offsets.pin_memory()) if pin_memory else (lengths, offsets)


def _one_id_per_bag(features: KeyedJaggedTensor) -> bool:
    lengths = features.lengths()
    return lengths.dtype == torch.int64 and lengths.numel() == features.values().numel() and bool((lengths == 1).all())
