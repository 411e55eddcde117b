"""Which rows a cell reads back after training, and what it writes of them."""

import numpy as np
import pytest
import torch

from suite.records.store import StoreError
from suite.run.agreement import ROWS, SampledRows, sampled_ids
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import load_initial_rows
from systems.contract import Rows
from systems.reference import ReferenceSystem
from tests.faults.cells import tiny_cell

STEPS = 20
CELL = tiny_cell(optimizer="rowwise_adagrad", batch_size=512, max_rows=60_000, train_steps=STEPS - 2)


@pytest.fixture(scope="module")
def workload():
    return CellSetup.of(CELL).workload


def trained_ids(workload, name):
    return np.unique(np.concatenate([workload.batch(i).features[name].values().numpy() for i in range(STEPS)]))


def test_same_rows_are_sampled_for_every_system_and_others_with_another_seed(workload):
    one, again, other = (sampled_ids(workload, steps=STEPS, seed=seed) for seed in (7, 7, 8))
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_sample_has_all_rows_of_small_tables_and_equal_shares_of_the_others_most_of_them_trained(workload):
    ids = sampled_ids(workload, steps=STEPS, seed=0)
    assert list(ids) == [name for name, _ in workload.tables]
    assert all(np.unique(found).size == found.size for found in ids.values())
    assert 0.98 * ROWS < sum(found.size for found in ids.values()) <= ROWS
    share = max(found.size for found in ids.values())
    for name, rows in workload.tables:
        assert ids[name].size in (rows, share, share - 1)
        assert 0 <= ids[name].min() <= ids[name].max() < rows
        trained = np.isin(ids[name], trained_ids(workload, name)).mean()
        if rows > 20 * share:  # two thirds and more were trained on, and some never were
            assert 0.65 < trained < 0.98


def test_file_has_rows_and_state_at_both_moments_and_how_far_rows_moved(workload, tmp_path):
    system = load_initial_rows(ReferenceSystem(CellSetup.of(CELL).spec), seed=0)
    path = tmp_path / "rows" / "key.npz"
    sample = SampledRows(system, workload, CELL, path)
    ids = sampled_ids(workload, steps=STEPS, seed=0)
    names = [name for name in ids for _ in ids[name]]
    place = names.index("device_ip") + 5
    row = int(ids["device_ip"][5])
    before = system.read_rows("device_ip", torch.tensor([row])).weights
    sample.read("early")
    system.load_rows("device_ip", row, Rows(before + 3.0, {"sum": torch.tensor([9.0])}))
    sample.read("late")
    sample.save()
    with np.load(path) as file:
        moments = {f"{moment}/{entry}" for moment in ("early", "late") for entry in ("weight", "moved", "sum")}
        assert set(file) == {"table", "id", *moments}
        assert file["table"].tolist() == names
        assert np.array_equal(file["id"], np.concatenate(list(ids.values())))
        assert np.array_equal(file["early/weight"][place], before[0].numpy())
        assert np.array_equal(file["late/weight"][place], (before + 3.0)[0].numpy())
        assert not file["early/moved"].any()
        assert not file["early/sum"].any()
        assert file["late/moved"].nonzero()[0].tolist() == file["late/sum"].nonzero()[0].tolist() == [place]
        assert file["late/moved"][place] == pytest.approx(6.0, rel=1e-5)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="cannot write "):
        sample.save()
