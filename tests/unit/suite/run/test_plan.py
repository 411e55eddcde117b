"""From options to cells."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.records.command_line import BadOption, OptimizerName
from suite.records.scales import LEAD_STEPS, SCALES, SMOKE
from suite.run import plan
from suite.run.console.options import Options, check_options
from suite.run.plan import fitted_to_epoch, plan_cells
from systems.contract import OptimizerKind
from workloads.schema import SCHEMAS

TB = 10**12


def options(**changes):
    values = {
        "systems": "reference,full_gpu,freq_cache,torchrec_uvm,fbgemm_uvm",
        "workloads": "avazu,criteo_kaggle",
        "scale": "smoke",
    }
    return Options(**{**values, **changes})


def planned(*, device="cpu", host_bytes=TB, **changes):
    return plan_cells(options(**changes), device=device, host_bytes=host_bytes)


def cells_of(**changes):
    return planned(**changes)[0]


class Prepared:
    """Stands where a prepared dataset is opened."""

    digest, tables = "feed", (("C1", 10**4), ("C2", 99 * 10**4))

    def __init__(self, folder, rows):
        self.folder, self._rows = Path(folder), rows

    def epoch_rows(self):
        return self._rows


@pytest.fixture
def prepared(monkeypatch):
    """Give datasets in place of those of `--data-dir`."""
    return lambda datasets: monkeypatch.setattr(plan, "open_datasets", lambda _: datasets)


def steps_of(scale):
    return scale.train_steps + scale.counted_steps


# Order


def test_every_round_has_a_seed_of_its_own_and_counts_traffic_in_the_first_alone():
    cells = cells_of(rounds=3, seed=7)
    assert [(c.round_seed, c.counts) for c in cells[::10]] == [(7, True), (8, False), (9, False)]
    assert {cell.seed for cell in cells} == {7}


@pytest.mark.parametrize(
    ("sweep", "sizes"),
    [
        ({"cache_ratio": "0.5,0.1,0.5"}, [(0.5, None), (0.1, None)]),
        ({"device_budget": "4096,8192"}, [(None, 4096), (None, 8192)]),
    ],
)
def test_sweep_is_a_setting_per_size_and_each_has_all_systems(sweep, sizes):
    cells = cells_of(workloads="avazu", **sweep)
    assert [(cell.cache_ratio, cell.device_budget_bytes) for cell in cells[::5]] == sizes
    assert len(cells) == 10
    assert len({cell.setting for cell in cells}) == 2


# Values


def test_every_optimizer_of_the_contract_can_be_asked_for_and_has_a_learning_rate_at_every_scale():
    optimizers = [str(kind) for kind in OptimizerKind]
    assert [str(name) for name in OptimizerName] == optimizers
    for scale in SCALES.values():
        assert list(scale.lr) == optimizers


def test_small_dataset_shrinks_its_own_cells_alone_and_the_note_says_so(prepared):
    datasets = {"avazu": Prepared("a", 1000), "criteo_kaggle": Prepared("b", 10**6)}
    prepared(datasets)
    cells, notes = planned()
    assert all(note.startswith("avazu: ") for note in notes)
    assert notes
    for cell in cells:
        assert cell.steps * cell.batch_size <= datasets[cell.workload].epoch_rows()
        if cell.workload == "criteo_kaggle":
            assert (cell.steps, cell.batch_size) == (steps_of(SMOKE), SMOKE.batch_size)


def test_synthetic_stream_is_not_trained_on_past_the_published_epoch():
    cells, notes = planned(workloads="avazu", batch_size=1_000_000, steps=50)
    assert cells[0].steps == SCHEMAS["avazu"].train_rows // 1_000_000 == 36
    assert notes == ["avazu: 36 steps, one whole epoch, instead of 50"]


# Steps


@given(st.integers(0, 5_000_000), st.sampled_from(list(SCALES.values())), st.integers(1, 20_000))
def test_no_row_is_trained_on_twice_and_every_change_is_told(rows, scale, batch_size):
    scale = replace(scale, batch_size=batch_size)
    try:
        made, changes = fitted_to_epoch(scale, rows)
    except BadOption as error:
        assert rows // min(batch_size, 16) < 5  # two turns of one step behind an untimed one, and one before
        assert str(rows) in str(error)
        return
    assert steps_of(made) >= 5
    assert min(made.train_steps, made.counted_steps) >= 1
    assert steps_of(made) * made.batch_size <= rows
    assert made.warmup_steps >= 1
    assert (made.warmup_steps + 2 * (LEAD_STEPS + 1)) * made.batch_size <= rows
    assert any("before the turns" in c for c in changes) == (made.warmup_steps != scale.warmup_steps)
    assert any(f"batch {made.batch_size} instead of {batch_size}" in c for c in changes) == (
        made.batch_size != batch_size
    )
    assert any(f"{steps_of(made)} steps" in c for c in changes) == (steps_of(made) != steps_of(scale))
    assert made.batch_size <= batch_size


# Scale


@pytest.mark.parametrize("workload", [*SCHEMAS, "avazu@drift", "mlperf_dlrm_v2@drift"])
def test_gpu_is_full_where_the_host_holds_all_rows_and_else_says_what_that_takes(workload):
    asked = {"workloads": workload, "device": "cuda", "scale": None}
    needed = int(SCHEMAS[workload.partition("@")[0]].table_rows * 128 * 4 * 1.25)
    cells, notes = planned(**asked, host_bytes=needed + 1)
    assert {cell.scale for cell in cells} == {"full"}
    cells, notes = planned(**asked, host_bytes=needed - 10**6)
    assert {cell.scale for cell in cells} == {"small"}
    assert notes[0].startswith(f"{workload}: scale small")
    assert f"{needed / 1e9:.0f} GB of host memory" in notes[0]


def test_scale_of_ones_own_data_follows_from_their_own_tables(prepared):
    prepared({"my_shop": Prepared("data/my_shop", 10**9)})
    for host_bytes, scale in ((10**9, "full"), (10**8, "small")):
        cells = cells_of(device="cuda", scale=None, host_bytes=host_bytes)
        assert {(cell.workload, cell.data, cell.scale) for cell in cells} == {("my_shop", "real", scale)}


def test_tracks_frequencies_and_tf32_tell_settings_apart():
    assert len({cell.setting for cell in cells_of(workloads="avazu,avazu@drift")}) == 2
    usual = cells_of()[0]
    changed = [cells_of(frequency_prefix=1.0)[0], cells_of(tf32=True, device="cuda")[0]]
    assert (changed[0].frequency_prefix, changed[1].tf32) == (1.0, True)
    assert len({cell.setting for cell in (usual, *changed)}) == 3


@pytest.mark.parametrize(
    ("workload", "optimizer", "lr", "expected"),
    [
        ("mlperf_dlrm_v2", "sgd", None, 0.12),  # 1 over 214 / 26 ids per bag
        ("mlperf_dlrm_v2", "sgd", 0.5, 0.5),
        ("mlperf_dlrm_v2", "rowwise_adagrad", None, 0.01),
    ],
)
def test_sgd_on_bags_takes_smaller_steps_unless_told_otherwise(workload, optimizer, lr, expected):
    cells = cells_of(workloads=workload, optimizer=optimizer, lr=lr)
    assert {cell.lr for cell in cells} == {expected}


def test_page_says_the_rates_on_bags():
    rates = [cells_of(workloads="mlperf_dlrm_v2", scale=scale)[0].lr for scale in SCALES]
    page = (Path(__file__).parents[4] / "docs" / "synthetic.md").read_text()
    assert "{}, {} and {} at `{}`, `{}` and `{}`".format(*rates, *SCALES) in page


def test_more_ranks_than_gpus_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadOption, match="--ranks 2 takes a GPU each, 1 visible: give fewer, or --device cpu"):
        check_options(Options(ranks=2), device="cuda")
    check_options(Options(ranks=2), device="cpu")
