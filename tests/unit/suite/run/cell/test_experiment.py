"""A whole cell in this process: its phases, what it measures, and how data are opened."""

from dataclasses import replace

import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from suite.records.record import Status
from suite.run import resources as memory
from suite.run.cell import experiment, setup
from suite.run.cell import feed as streams
from suite.run.cell.experiment import run_cell as run
from suite.run.cell.feed import in_process, open_workload
from suite.run.cell.training import Trainer, load_initial_rows
from suite.run.worker import Reporter, RunCell
from systems.contract import Counters, Verdict
from systems.reference import ReferenceSystem
from tests.faults.cells import tiny_cell
from workloads.batch import Split


class Phases(Reporter):
    """Writes down phases, and the steps that each told of."""

    def __init__(self):
        super().__init__(None)
        self.seen, self.told = [], {}

    def phase(self, name):
        super().phase(name)
        self.seen.append(name)

    def beat(self, step=0, steps=0):
        if steps:
            self.told.setdefault(self.seen[-1], []).append((step, steps))


def run_cell(cell, reporter):
    return run(RunCell(cell=cell), reporter)


@pytest.fixture(scope="module")
def ran():
    phases = Phases()
    cell = tiny_cell(train_steps=7, counted_steps=2, quality_points=3, evaluation_batches=3)
    return cell, run_cell(cell, phases), phases


def test_phases_come_in_the_order_of_the_protocol_and_show_life_at_every_step(ran):
    _, _, phases = ran
    assert phases.seen == ["support", "verify", "feed", "build", "train", "count", "evaluate"]
    told = {
        "train": [(step, 7) for step in range(1, 8)],
        "count": [(1, 2), (2, 2)],
        "evaluate": [(1, 3), (2, 3), (3, 3)],
    }
    assert phases.told == told


def test_ok_cell_measures_quality_memory_and_traffic_and_no_speed(ran):
    cell, outcome, _ = ran
    assert outcome.status is Status.OK
    measured = outcome.measurement
    assert measured.quality.samples == 3 * cell.batch_size
    assert 0 <= measured.quality.auroc <= 1
    assert measured.memory.device_allocated_bytes is None
    assert measured.memory.host_peak_rss_bytes > 0
    assert measured.traffic.steps == 2
    assert measured.traffic.lookups == 2 * cell.batch_size * 13
    assert measured.traffic.hit_rate == 1.0
    assert measured.epoch_samples == 36_386_071
    assert (measured.prior_knowledge, measured.same_kernel_as, measured.busy_between_steps) == ("nothing", None, False)
    timing = measured.timing
    assert timing.alone_steps_per_s > 0


def test_quality_points_score_every_sample_before_it_is_trained_on(ran):
    cell, outcome, _ = ran
    points = outcome.measurement.quality.points
    assert [point.samples for point in points] == [3 * 32, 6 * 32, 9 * 32]
    workload = open_workload(cell)
    spec = setup.CellSetup.of(cell).spec
    system = load_initial_rows(ReferenceSystem(spec), seed=cell.seed)
    sizes = {"bottom_mlp": cell.bottom_mlp, "top_mlp": cell.top_mlp, "seed": 0}
    trainer = Trainer(system, workload, **sizes, feed=in_process(workload, spec.device), total_steps=9)
    for number, point in enumerate(points):
        scores, labels, losses = [], [], []
        for index in range(3 * number, 3 * number + 3):
            batch = workload.batch(index)
            scores.append(trainer.logits(batch).sigmoid())
            labels.append(batch.labels)
            losses.append(trainer.run(1).loss)
        expected = binary_auroc(torch.cat(scores), torch.cat(labels).int())
        assert point.auroc == pytest.approx(float(expected), abs=1e-6)
        assert point.loss == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_later_rounds_have_a_stream_of_their_own_the_same_in_every_run_and_count_nothing(ran):
    cell, outcome, _ = ran
    later = run_cell(cell.model_copy(update={"round": 1}), Phases())
    seeded = run_cell(cell.model_copy(update={"seed": 1}), Phases())
    assert later.measurement.traffic is None
    assert later.measurement.quality == seeded.measurement.quality != outcome.measurement.quality


def test_counted_traffic_is_that_of_the_counting_phase_alone(ran):
    cell, outcome, _ = ran
    workload = open_workload(cell)
    unique = 0
    for index in (7, 8):
        features = workload.batch(index).features
        unique += sum(features[name].values().unique().numel() for name in features.keys())  # noqa: SIM118 - torchrec's
    assert outcome.measurement.traffic.unique_ids == unique


def test_pace_alone_counts_the_waits_for_batches_under_which_a_device_may_compute(monkeypatch):
    real = Trainer.run

    def waiting(trainer, steps, **options):
        return replace(real(trainer, steps, **options), duration_s=1.5, wait_s=0.5)

    monkeypatch.setattr(Trainer, "run", waiting)
    timing = run_cell(tiny_cell(train_steps=7), Phases()).measurement.timing
    assert timing.alone_steps_per_s == pytest.approx(4)  # of the seven steps one leads, untimed


def test_control_is_not_verified_and_says_so_and_so_is_a_refused_reset_of_the_peak(monkeypatch):
    monkeypatch.setattr(memory, "reset_peaks", lambda device: False)
    phases = Phases()
    outcome = run_cell(tiny_cell("no_embeddings"), phases)
    assert outcome.status is Status.OK
    assert outcome.verification is None
    assert "verify" not in phases.seen
    assert outcome.notes == (
        "a control, not a system: not verified, not ranked",
        "the peak of host memory could not be reset and includes imports and verification",
    )


def test_drive_without_room_for_a_file_tier_makes_a_cell_infeasible_before_it_builds(monkeypatch, tmp_path):
    cell = tiny_cell("freq_cache[tier=file]")
    wanted = setup.CellSetup.of(cell)
    rows = wanted.spec.row_bytes + wanted.spec.state_bytes
    monkeypatch.setattr(setup.locks, "free_bytes", lambda: (tmp_path, rows))
    assert wanted.support().verdict is Verdict.YES
    monkeypatch.setattr(setup.locks, "free_bytes", lambda: (tmp_path, rows - 1))
    phases = Phases()
    outcome = run_cell(cell, phases)
    assert (outcome.status, phases.seen) == (Status.INFEASIBLE, ["support"])
    assert outcome.reason.startswith(f"needs 0.0 GB at {tmp_path}, 0.0 GB are free there: set TMPDIR to ")


def test_evaluation_is_on_the_test_split_and_touches_no_row(monkeypatch):
    class Watched(ReferenceSystem):
        def forward(self, features):
            modes.append((self.training, torch.is_grad_enabled()))
            return super().forward(features)

    modes, splits = [], []
    monkeypatch.setattr(experiment.registry, "load", lambda variant, **_: Watched)
    real = streams.SyntheticWorkload.batch

    def batch(self, index, split=Split.TRAIN):
        splits.append(split)
        return real(self, index, split)

    monkeypatch.setattr(streams.SyntheticWorkload, "batch", batch)
    assert run_cell(tiny_cell("no_embeddings"), Phases()).status is Status.OK
    assert splits == [Split.TRAIN] * 5 + [Split.TEST] * 2
    assert modes == [(True, True)] * 5 + [(False, False)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("system", ["freq_cache", "full_gpu"])
def test_cell_on_bags_is_verified_and_counts_every_id_and_not_samples(system):
    cell = tiny_cell(system, workload="mlperf_dlrm_v2", lr=0.05, train_steps=5, counted_steps=2)
    outcome = run_cell(cell, Phases())
    assert outcome.status is Status.OK, outcome.reason
    workload = open_workload(cell)
    counted = [workload.batch(index).features.values().numel() for index in (5, 6)]
    assert outcome.measurement.traffic.lookups == sum(counted)
    assert sum(counted) > 7 * 2 * cell.batch_size * 26


@pytest.mark.slow
def test_verification_of_a_hundred_ids_per_bag_does_not_diverge():
    # at the rate that one id per bag takes, the reference itself ends in NaN with this seed
    cell = tiny_cell("full_gpu", workload="mlperf_dlrm_v2", seed=4, lr=0.05, embedding_dim=16, max_rows=50_000)
    outcome = run_cell(cell, Phases())
    assert outcome.status is Status.OK, outcome.reason


@pytest.mark.slow
def test_cell_fed_by_producers_trains_on_the_same_batches_and_says_how_it_was_fed(ran, monkeypatch):
    cell, alone, _ = ran
    threads = []
    monkeypatch.setattr(experiment, "producers_for", lambda **_: 1)
    monkeypatch.setattr(experiment, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    fed = run_cell(cell, Phases())
    assert fed.status is Status.OK
    assert fed.measurement.quality == alone.measurement.quality
    assert fed.measurement.traffic == alone.measurement.traffic
    timing = fed.measurement.timing
    assert (timing.batches_made, timing.producers) == ("by producers, during training", 1)
    assert 1 in threads  # of two cores one makes batches
    timing = alone.measurement.timing
    assert (timing.batches_made, timing.producers) == ("by the training process, before the clock", 0)


@pytest.mark.parametrize(
    ("misses", "change"), [((800, 1600), 0.0), ((800, 1200), -0.5), ((800, 1640), 0.05), ((0, 5), None)]
)
def test_misses_that_still_fall_while_they_are_counted_show_as_a_change(misses, change):
    halves = [Counters(steps=steps, unique_misses=count) for steps, count in zip((8, 16), misses, strict=True)]
    found = experiment._change_of_misses(halves)
    assert found == (None if change is None else pytest.approx(change))
    assert experiment._change_of_misses(halves[:1]) is None
