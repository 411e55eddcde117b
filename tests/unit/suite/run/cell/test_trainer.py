"""The trainer: which batches a system sees, in which order, and what evaluation leaves alone."""

import pytest
import torch

from suite.run.cell import training
from suite.run.cell.feed import in_process
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import Trainer, dense_optimizer, load_initial_rows
from systems.reference import ReferenceSystem
from tests.faults.cells import tiny_cell

BATCH = 16


class Recording(ReferenceSystem):
    """The reference, writing down what it was told and asked, by the ids of a batch."""

    ahead = 0

    def __init__(self, spec):
        super().__init__(spec)
        self.announced = []
        self.forwarded = []
        self.lead = []

    @property
    def look_ahead(self):
        return self.ahead

    def prefetch(self, features):
        self.announced.append(features.values())

    def forward(self, features):
        if self.training:
            self.forwarded.append(features.values())
            self.lead.append(len(self.announced) - len(self.forwarded))
        return super().forward(features)


class CountingWorkload:
    """A workload that writes down which batches were made."""

    def __init__(self, workload):
        self._workload = workload
        self.made = []

    def __getattr__(self, name):
        return getattr(self._workload, name)

    def batch(self, index, *split):
        self.made.append(index)
        return self._workload.batch(index, *split)


def setup_of(optimizer="sgd"):
    return CellSetup.of(tiny_cell(batch_size=BATCH, lr=0.5, optimizer=optimizer))


@pytest.fixture(scope="module")
def synthetic():
    return setup_of().workload


@pytest.fixture(scope="module")
def spec():
    return setup_of().spec


def trained_on(system, workload, total):
    load_initial_rows(system, seed=0)
    sizes = {"bottom_mlp": (8,), "top_mlp": (8, 1), "seed": 0}
    return Trainer(system, workload, **sizes, feed=in_process(workload, system.spec.device), total_steps=total)


def same(seen, expected):
    return len(seen) == len(expected) and all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("copies", [0, 2])  # under way: on a CPU nothing is copied, and all else is as for a device
@pytest.mark.parametrize("ahead", [0, 3, 20])
@pytest.mark.parametrize("runs", [(7,), (1, 4, 2)], ids=str)
def test_every_batch_is_used_once_in_order_and_announced_once_but_never_past_the_end(
    synthetic, spec, monkeypatch, runs, ahead, copies
):
    total, sent, at_clock, at_step = 7, [], [], []
    workload = CountingWorkload(synthetic)
    system = type("Ahead", (Recording,), {"ahead": ahead})(spec)
    trainer = trained_on(system, workload, total)
    delivery = trainer._batches
    delivery._ahead = copies
    start = delivery._sent
    monkeypatch.setattr(delivery, "_sent", lambda batch: sent.append(batch) or start(batch))
    monkeypatch.setattr(training, "synchronize", lambda device: at_clock.append(len(sent)))
    for steps in runs:
        trainer.run(steps, on_step=lambda _: at_step.append(len(sent)))
    expected = [synthetic.batch(index).features.values() for index in range(total)]
    assert workload.made == list(range(total))
    assert same(system.forwarded, expected)
    if ahead:
        assert same(system.announced, expected)
        # at step i, batches 0 to i + ahead are announced, as far as there are any
        assert system.lead == [min(i + 1 + ahead, total) - (i + 1) for i in range(total)]
    else:
        assert system.announced == []
    assert at_clock[0] == 1 + copies
    assert at_step == [min(i + 1 + copies + ahead, total) for i in range(total)]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_dense_optimizer_never_sees_a_row(synthetic, optimizer):
    system = ReferenceSystem(setup_of(optimizer).spec)
    model = trained_on(system, synthetic, total=1)._model
    made = dense_optimizer(model, system.spec.optimizer)
    held = [parameter for group in made.param_groups for parameter in group["params"]]
    assert held
    assert {id(p) for p in held} == {id(p) for name, p in model.named_parameters() if "sparse_arch" not in name}
    assert made.defaults["lr"] == 0.5


def test_initial_rows_arrive_whole_and_in_chunks(synthetic, spec, monkeypatch):
    class Loading(ReferenceSystem):
        def load_rows(self, table, start, rows):
            chunks.append((table, start, rows.weights.shape[0]))
            super().load_rows(table, start, rows)

    chunks, told = [], []
    for module in ("suite.run.cell.training", "workloads.dlrm"):
        monkeypatch.setattr(f"{module}.INITIAL_ROWS", 40)
    whole = ReferenceSystem(spec)
    load_initial_rows(whole, seed=3)
    monkeypatch.setattr("suite.run.cell.training._LOADED_ROWS", 80)
    pieces = Loading(spec)
    load_initial_rows(pieces, seed=3, on_chunk=lambda: told.append(1))
    assert len(told) == len(chunks)
    assert max(rows for _, _, rows in chunks) == 80
    for name, rows in synthetic.tables:
        ids = torch.arange(rows)
        left, right = whole.read_rows(name, ids).weights, pieces.read_rows(name, ids).weights
        assert torch.equal(left, right)
        assert (left.any(dim=1)).all()
        assert left.abs().max() <= rows**-0.5
