"""Rows of a batch between the slow tier and slots: which are read ahead, which when they are needed, and who waits."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.features import Group
from systems.freq_cache.cache.mover import BatchMover, Planned, Writer
from systems.freq_cache.cache.plan import CacheCounters, Plan
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.staging import Transfer
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.slow_tier import HostTier
from systems.threads import Worker
from tests.contract.scenes import table

CPU = torch.device("cpu")
LAYOUT = RowLayout(4, torch.float32, {})
NOTHING = np.empty(0, np.int32)


class Gated(HostTier):
    """Rows are written only while the gate is open; a clock says how long reading and writing take."""

    def __init__(self) -> None:
        super().__init__(rows=50, layout=LAYOUT)
        self.records.copy_(torch.arange(50.0)[:, None].expand(50, 4))
        self.gate = threading.Event()
        self.gate.set()
        self.clock = 0.0

    def read(self, rows: Tensor, out: Tensor) -> None:
        self.clock += 0.5
        super().read(rows, out)

    def write(self, rows: Tensor, records: Tensor) -> None:
        assert self.gate.wait(10)
        self.clock += 2.0
        super().write(rows, records)


class Scene:
    def __init__(self, *, rows: int, worker: Worker | None) -> None:
        self.tier = Gated()
        self.pool = SlotTable(
            slots=8,
            layout=LAYOUT,
            group=Group((table("t", 50, 4),), (0,)),
            optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
            device=CPU,
        )
        self.writer = Writer(self.tier, worker)
        self.mover = BatchMover(self.pool, tier=self.tier, writer=self.writer, transfer=Transfer(CPU), rows=rows)
        self.traffic = CacheCounters()

    def plan(self, batch: int, *, fetch: dict[int, int], after: list[int], back: dict[int, int]) -> Planned:
        """`fetch`, `back`: slots by row."""

        def numbers(values: object) -> np.ndarray:
            return np.array(list(values), np.int32)

        return Planned(
            Plan(
                batch=batch,
                rows=numbers(fetch),
                slots=numbers(fetch.values()),
                missed=np.ones(len(fetch), np.bool_),
                inverse=NOTHING,
                unique_misses=len(fetch),
                lookup_misses=0,
                fetch_rows=numbers(fetch),
                fetch_slots=numbers(fetch.values()),
                back_rows=numbers(back),
                back_slots=numbers(back.values()),
                fetch_after=numbers(after),
                overflow=False,
            ),
            NOTHING,
            True,
        )


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("writing")
    yield worker
    worker.close()


def trained(scene: Scene) -> None:
    """Rows 1, 2 and 3 are in slots and differ from the slow tier; what leaves from now on stays on its way."""
    scene.mover.move(scene.plan(0, fetch={1: 0, 2: 1, 3: 2}, after=[-1, -1, -1], back={}), scene.traffic)
    scene.traffic = CacheCounters()
    scene.pool.weights[:3] += 100
    scene.tier.gate.clear()


@pytest.mark.parametrize("rows", [2, 3, 10])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_row_that_leaves_with_the_batch_before_is_taken_from_there(rows: int, order: list[int], worker: Worker) -> None:
    scene = Scene(rows=rows, worker=worker)
    trained(scene)
    leaving = scene.plan(1, fetch={4: 0}, after=[-1], back={(3, 1)[at]: (2, 0)[at] for at in order})
    coming = scene.plan(2, fetch={5: 3, 1: 4, 6: 5}, after=[-1, 1, -1], back={2: 1})
    scene.mover.send(leaving)
    scene.mover.send(coming)  # before the other is moved
    assert (coming.early, coming.last) == (2, 1)
    for planned in (leaving, coming):
        scene.mover.move(planned, scene.traffic)
    scene.mover.move(coming, scene.traffic)  # as after an error: nothing is left to do
    assert scene.pool.weights[[0, 3, 4, 5], 0].tolist() == [4.0, 5.0, 101.0, 6.0]
    assert (scene.traffic.late_batches, scene.traffic.rows_fetched) == (0, 4)
    scene.tier.gate.set()
    scene.writer.wait()
    assert scene.tier.records[:4, 0].tolist() == [0.0, 101.0, 102.0, 103.0]


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
def test_a_row_that_is_not_home_yet_does_not_hold_up_the_others(rows: int, worker: Worker) -> None:
    scene = Scene(rows=rows, worker=worker)
    trained(scene)
    for planned in (
        scene.plan(1, fetch={4: 0}, after=[-1], back={1: 0}),
        scene.plan(2, fetch={}, after=[], back={}),
    ):
        scene.mover.send(planned)
        scene.mover.move(planned, scene.traffic)
    coming = scene.plan(3, fetch={5: 3, 1: 4, 6: 5}, after=[-1, 1, -1], back={})
    scene.mover.send(coming)
    assert coming.early == 2
    read = scene.mover._entries[1].take(coming.rows_read)[:, 0].tolist()
    assert read == [5.0, 6.0][:rows]
    opener = threading.Timer(0.05, scene.tier.gate.set)
    opener.start()
    scene.mover.move(coming, scene.traffic)
    opener.join()
    assert scene.pool.weights[:6, 0].tolist() == [4.0, 102.0, 103.0, 5.0, 101.0, 6.0]
    assert scene.traffic.late_batches == 1


def test_few_batches_wait_to_be_written_back(worker: Worker) -> None:
    scene = Scene(rows=2, worker=worker)
    scene.tier.gate.clear()
    opener = threading.Timer(0.1, scene.tier.gate.set)
    opener.start()
    for batch in range(12):
        scene.mover.move(scene.plan(batch, fetch={}, after=[], back={batch: 0}), scene.traffic)
        assert scene.writer.pending_bytes <= 4 * LAYOUT.record_bytes
    opener.join()


def test_slots_reach_fbgemm_in_64_bits_so_that_its_sort_keys_do_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(rows=2, worker=None)
    given = []
    tbe = scene.pool._tbe
    monkeypatch.setattr(scene.pool, "_tbe", lambda slots, *rest: given.append(slots.dtype) or tbe(slots, *rest))
    slots = torch.tensor([3, 3, 0, 7], dtype=torch.int32)
    for offsets in (None, torch.tensor([0, 1, 1, 4], dtype=torch.int32)):
        scene.pool.look_up(slots, offsets, None)
    assert given == [torch.int64, torch.int64]
