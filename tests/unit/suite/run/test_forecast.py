"""What is said of cells before they run."""

from __future__ import annotations

import sys

import pytest

from suite.advise.calibration import CalibrationFailed
from suite.run import forecast as module
from suite.run import forecaster
from suite.run.forecast import Forecast, ForecastFailed, Progress, cell_key, forecast
from suite.run.stream import open_workload
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.registry import build
from suite.simulate.traces.trace import WorkloadTrace
from systems.registry import Variant
from tests.faults.cells import fake, tiny_cell


def test_every_cell_is_predicted_in_a_process_of_its_own_and_rounds_share_what_is_said():
    cells = [tiny_cell("full_gpu"), tiny_cell("freq_cache"), tiny_cell("freq_cache", round=1)]
    seen = []
    found = forecast(cells, lambda what, done, total: seen.append((what, done, total)))
    assert found.keys() == {cell_key(cell) for cell in cells}
    assert len(found) == 2
    for cell in cells:
        prediction = found[cell_key(cell)].prediction
        assert prediction is not None
        assert prediction.steps_per_s == pytest.approx(1 / sum(prediction.terms_s.values()))
        assert prediction.samples_per_s == pytest.approx(prediction.steps_per_s * cell.batch_size)
        assert all(seconds > 0 for seconds in prediction.terms_s.values())
        assert prediction.hidden_s == {}  # nothing looks ahead
    whole, cached = (found[cell_key(cell)] for cell in cells[:2])
    assert whole.prediction.hit_rate is None
    assert whole.optimum is None
    assert 0 < cached.prediction.hit_rate < 1
    assert (cached.optimum.slots, cached.optimum.steps) == (998, 2)
    assert any(what.startswith("replaying") for what, _, _ in seen)


def test_the_optimum_is_beladys_over_the_counted_steps_alone(monkeypatch):
    cell = tiny_cell("freq_cache", cache_ratio=0.05, batch_size=16, counted_steps=4)
    monkeypatch.setattr(forecaster, "_calibrated", lambda *_: pytest.fail("not asked for"))
    case = forecaster.Case.of(cell, open_workload(cell))
    optimum = forecaster._optimum(cell, case)
    span = Span(counted_from=cell.steps - 4, stop=cell.steps)
    setting = Setting(trace=WorkloadTrace(open_workload(cell)), span=span, slots=case.slots)
    tally = replay(build(Variant("belady"), setting))
    assert optimum.unique_misses == tally.unique_misses
    assert optimum.bytes_moved == 16 * (tally.rows_fetched + tally.rows_written_back)  # 4 fp32 values a row
    ours = replay(build(Variant("freq_cache"), setting))
    assert optimum.unique_misses <= ours.unique_misses


def test_what_cannot_be_said_has_a_reason_and_the_other_cells_are_not_touched(monkeypatch):
    cells = [tiny_cell(fake("Hang")), tiny_cell("freq_cache"), tiny_cell("freq_cache", cache_ratio=None)]

    def out_of_order(*_):
        raise CalibrationFailed("the calibration ended with exit code 3 and no result")

    monkeypatch.setattr(forecaster, "_calibrated", out_of_order)
    sent = []
    forecaster.run(cells, sent.append)
    said = {message.cell: message for message in sent if isinstance(message, Forecast)}
    assert said.keys() == {cell_key(cell) for cell in cells}
    stranger, cached = (said[cell_key(cell)] for cell in cells[:2])
    assert stranger.prediction is None
    assert stranger.why
    assert cached.prediction is None
    assert cached.why == "the calibration ended with exit code 3 and no result"
    assert cached.optimum is not None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "import sys; sys.stderr.write('no more memory\\n'); sys.exit(3)",
            "exit code 3, its last line: no more memory",
        ),
        ("print('hello')", "a line that is no message"),
        (f"print({Forecast(cell='another').model_dump_json()!r})", "exit code 0"),
    ],
)
def test_a_process_that_ends_early_is_told_with_its_last_words(monkeypatch, script, said):
    real = module.subprocess.Popen
    monkeypatch.setattr(
        module.subprocess, "Popen", lambda words, **options: real([sys.executable, "-c", script], **options)
    )
    with pytest.raises(ForecastFailed, match=said):
        forecast([tiny_cell()])


@pytest.fixture
def stand_in(monkeypatch):
    """Starts a script instead of the process that forecasts; the process started is kept."""
    real, started = module.subprocess.Popen, []

    def use(script):
        def start(words, **options):
            started.append(real([sys.executable, "-c", script], **options))
            return started[-1]

        monkeypatch.setattr(module.subprocess, "Popen", start)
        return started

    return use


def test_a_process_that_says_nothing_for_too_long_is_ended(stand_in):
    started = stand_in("import time; time.sleep(60)")
    with pytest.raises(ForecastFailed, match="said nothing for 1 s and was ended"):
        forecast([tiny_cell()], stall_s=1)
    assert started[0].poll() is not None


def test_ctrl_c_ends_the_process_too(stand_in):
    line = Progress(what="calibrating", done=0, total=1).model_dump_json()
    started = stand_in(f"import time; print({line!r}, flush=True); time.sleep(60)")

    def interrupt(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forecast([tiny_cell()], interrupt)
    assert started[0].poll() is not None
