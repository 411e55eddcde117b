"""Calibrating for real, at a size that says little."""

from __future__ import annotations

import pytest
from advise_scenes import shape

from suite.advise.calibrate import calibrate, lines, measure
from suite.advise.calibrate.calibrate import CalibrationFailed, Order
from suite.advise.calibrate.calibration import Calibration, Kernel, RowType, kernel_of
from suite.advise.calibrate.streams import STREAMS
from suite.advise.costs import Counts
from suite.records import environment
from systems.contract import Purpose, Tier

KERNELS = tuple(
    kernel_of(name, device="cpu")
    for name in ("full_gpu", "reference", "freq_cache", "freq_cache[look_ahead=2,policy=lru]", "no_embeddings")
)
SHAPE = shape(rows=9000, batch_size=32)


@pytest.fixture(scope="module")
def measured() -> Calibration:
    told = []
    found = measure.measured(
        Order(shapes=(SHAPE,), kernels=(*KERNELS, Kernel(variant="reference", row_type=RowType.FP16)), seconds=0.01),
        on_progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert [done for _, done, _ in told] == [0, 1, 2]  # three rounds at least, however little time there is
    return found


def test_rows_of_a_file_tier_are_in_the_file_before_they_are_timed() -> None:
    run = measure._ShapeRun(SHAPE, (), seconds=0.01)
    rows = sum(run._tables[RowType.FP32].rows)
    (few, many) = run._built(kernel_of("freq_cache[tier=file]", device="cpu"))
    for subject in (few, many):
        assert subject.system.memory()[Tier.DISK, Purpose.ROWS] >= rows * SHAPE.embedding_dim * 4
        subject.system.close()


def test_every_kernel_has_its_costs_or_a_reason(measured: Calibration) -> None:
    (costs,) = measured.shapes
    assert {found.kernel for found in costs.kernels} == set(KERNELS)
    assert "keeps rows in float32" in costs.refused["reference fp16"]
    assert all(found.dense_s > 0 for found in costs.kernels)


def test_streams_tell_misses_and_rows_apart() -> None:
    run = measure._ShapeRun(SHAPE, (), seconds=0.01)
    run._make_batches(len(STREAMS) * lines.BLOCK_STEPS)
    (resident,), (few, many) = run._built(KERNELS[0]), run._built(KERNELS[2])
    for subject in (resident, few, many):
        run._turn(subject)
        counts = [one for stream in STREAMS for one in subject.counts[stream.name]]
        assert len(counts) == len(STREAMS) * (lines.BLOCK_STEPS - 1)
        assert all(0 < one.distinct <= one.lookups for one in counts)
        assert any(one.misses > 0 for one in counts) == (subject is not resident)
    misses = [sum(one.misses for counts in cache.counts.values() for one in counts) for cache in (few, many)]
    assert misses[0] > misses[1]


def test_own_cache_is_told_by_stage_and_others_by_lookup_and_update(measured: Calibration) -> None:
    (costs,) = measured.shapes
    counts = Counts(lookups=96, distinct=80, misses=40, rows_fetched=40, rows_written_back=40)
    plain = costs.of(KERNELS[0])
    assert plain is not None
    assert plain.lookup.seconds(counts) > 0 < plain.update.seconds(counts)
    assert plain.planning.seconds(counts) == plain.moving.seconds(counts) == plain.beside.seconds(counts) == 0
    own, ahead = costs.of(KERNELS[2]), costs.of(KERNELS[3])
    assert own is not None
    assert ahead is not None
    assert own.planning.seconds(counts) > 0 < own.moving.seconds(counts)
    assert own.beside.seconds(counts) == 0
    assert ahead.planning.seconds(counts) == 0 < ahead.beside.seconds(counts)


@pytest.mark.slow
def test_process_of_its_own_answers_an_order() -> None:
    told = []
    found = calibrate.calibrate(
        [SHAPE], [KERNELS[0], KERNELS[0]], seconds=0.01, on_progress=lambda *progress: told.append(progress)
    )
    assert [costs.kernel for costs in found.shapes[0].kernels] == [KERNELS[0]]
    assert found.cpu == environment.capture(threads=1).cpu
    assert told


@pytest.mark.slow
def test_process_that_fails_leaves_its_last_words() -> None:
    with pytest.raises(CalibrationFailed, match=r"exit code 1 .* no result; its last line: .*NoSuchThing"):
        calibrate.calibrate([SHAPE], [Kernel(variant="suite.advise:NoSuchThing")], seconds=0.01)


def test_slow_blocks_do_not_decide_until_they_are_half_of_all() -> None:
    assert lines.BLOCK_STEPS == 3
    assert lines.typical([1.0]) == 1.0
    assert lines.typical([1.0, 3.0]) == 2.0
    assert lines.typical([1.0, 3.0, 900.0, 900.0, 2.0, 2.0]) == 2.0
    assert lines.typical([1.0, 3.0, 900.0, 900.0]) == 451.0
