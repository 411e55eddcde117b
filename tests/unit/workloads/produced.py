"""Workloads for producer processes to open: in a module of their own, which they import without pytest."""

import time

import torch
from torchrec import KeyedJaggedTensor

from workloads.batch import Batch, Split

SAMPLES = 32
FAILING, UNPICKLABLE, SLOW = 4, 5, 6


class Refused(Exception):
    """An exception that pickle cannot make again: its arguments are not its constructor's."""

    def __init__(self, index, reason):
        super().__init__(f"no batch {index}: {reason}")


class Bags:
    """Bags of no id up to more ids with every batch, then batches that fail, each in its own way, and a slow one."""

    def batch(self, index, split):
        assert split is Split.TRAIN
        if index == FAILING:
            raise ValueError("four is not to be had")
        if index == UNPICKLABLE:
            raise Refused(index, "not this one either")
        if index == SLOW:
            time.sleep(60)
        generator = torch.Generator().manual_seed(index)
        lengths = torch.randint(0, 2 + 40 * index, (2 * SAMPLES,), generator=generator)
        lengths[::7] = 0
        values = torch.randint(0, 1000, (int(lengths.sum()),), generator=generator)
        features = KeyedJaggedTensor(["a", "b"], values, lengths=lengths, stride=SAMPLES)
        dense = torch.rand(SAMPLES, 3, generator=generator)
        return Batch(dense, features, torch.randint(0, 2, (SAMPLES,), generator=generator).float())


def nothing_to_open():
    raise FileNotFoundError("no data in this place")


def open_avazu():
    from workloads.streams.synthetic import SyntheticWorkload

    return SyntheticWorkload.create("avazu", batch_size=SAMPLES, seed=3, max_rows=2000)


def equal(left, right):
    """Whether two batches are equal bit for bit, the bags' bookkeeping included."""
    a, b = left.features, right.features
    pairs = (
        (a.values(), b.values()),
        (a.lengths(), b.lengths()),
        (a.offsets(), b.offsets()),
        (left.dense, right.dense),
        (left.labels, right.labels),
    )
    same = all(torch.equal(x, y) and x.dtype == y.dtype for x, y in pairs)
    return same and a.keys() == b.keys() and a.stride() == b.stride()
