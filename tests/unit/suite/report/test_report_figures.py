"""Figures show what was recorded, nothing in them is cut off or drawn over, and equal records give equal files."""

from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer

from suite.records.record import Status
from suite.report.figures import figures
from suite.report.publish import publish, sheets
from suite.simulate.results import Simulation
from suite.tables.rows import merged_rows
from tests.unit.suite import fabricate
from tests.unit.suite.fabricate import GB
from tests.unit.suite.report.report_scenes import source, sweep
from tests.unit.suite.tables.disk_scenes import GIB, MIB, OURS, contest

CPU = {"device": "cpu", "max_rows": 1_000_000, "cache_ratio": None}
REPLAYED = Path(__file__).resolve().parents[4] / "results" / "simulate" / "epoch" / "simulation.json"


def simulation(**changes):
    return Simulation.model_validate_json(REPLAYED.read_text()).model_copy(update=changes)


def axes_of(figure, title):
    return next(axes for axes in figure.axes if axes.get_title().startswith(title) and axes.get_visible())


def line(axes, label):
    return next(one for one in axes.lines if one.get_label() == label)


def drawn_points(axes):
    """Place, ratio and interval of every point, by label."""
    found = {}
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        bars = container.lines[2][0].get_segments()
        found[container.get_label()] = [
            (x, y, low, high) for x, y, ((_, low), (_, high)) in zip(*container.lines[0].get_data(), bars, strict=True)
        ]
    return found


def test_every_system_has_a_line_over_its_sizes_with_intervals_beside_the_noise_band():
    given = source(sweep())
    axes = axes_of(figures(given)["throughput_by_bytes"], "Criteo Kaggle")
    points = drawn_points(axes)
    assert points.keys() == {"cache", "torchrec_uvm"}
    expected = [
        (group.cell.cache_ratio * GB + GB // 1000, row.ratio.value, row.ratio.low, row.ratio.high)
        for group in given.groups
        for row in merged_rows(group)
        if row.system == "cache"
    ]
    assert {round(ratio, 9) for _, ratio, _, _ in expected} == {0.8, 0.9}
    assert sorted(points["cache"]) == [pytest.approx(point) for point in sorted(expected)]
    assert [one.get_xydata().tolist() for one in axes.lines if one.get_marker() == "D"] == [[[10 * GB, 1]]]
    (band,) = [patch for patch in axes.patches if patch.get_label() == "noise"]
    noise = max(merged_rows(group)[0].noise for group in given.groups)
    assert noise >= 0.04 - 1e-9
    assert (band.get_y(), band.get_height()) == pytest.approx((1 - noise, 2 * noise))
    assert f"noise ±{100 * noise:.2g} %" in axes.get_title()
    low, high = axes.get_ylim()
    assert low < 0.5 and high > 1 + noise


def test_on_a_gpu_a_table_on_the_host_stands_at_no_bytes_and_on_a_cpu_it_is_left_out():
    axes = axes_of(figures(source(sweep()))["throughput_by_bytes"], "Criteo Kaggle")
    assert {x for x, *_ in drawn_points(axes)["torchrec_uvm"]} == {axes.get_xticks()[0]}
    assert axes.xaxis.get_major_formatter()(axes.get_xticks()[0], None) == "none"
    figure = figures(source(sweep(device="cpu")))["throughput_by_bytes"]
    assert drawn_points(axes_of(figure, "Criteo Kaggle")).keys() == {"cache"}
    assert "no offload throughput" in figure.legends[0].get_title().get_text().replace("\n", " ")


def test_who_failed_or_was_not_timed_has_no_point():
    bad = [
        *fabricate.rounds("full_gpu", [fabricate.BASELINE] * 2),
        *fabricate.rounds("same", [1.0, 1.0], same_kernel_as="full_gpu"),
        *fabricate.rounds("failed", [1e6]),
        fabricate.record("failed", round=1, status=Status.TIMEOUT, reason="slow"),
        *fabricate.rounds("wrong", [1e6], checked=fabricate.verification(passed=False)),
    ]
    assert "throughput_by_bytes" not in figures(source(bad))
    drawn = figures(source([*bad, *fabricate.rounds("good", [8e5] * 2)]))["throughput_by_bytes"]
    assert drawn_points(drawn.axes[0]).keys() == {"good"}


def test_miss_curves_hold_the_simulated_rates_and_say_so():
    replayed = simulation(complete=False)
    drawn = figures(source([], simulations=(replayed,)))
    assert list(drawn) == ["miss_ratio"]
    figure = drawn["miss_ratio"]
    assert "simulated" in figure.get_suptitle()
    assert "interrupted" in figure.axes[0].get_title()
    axes = axes_of(figure, "criteo_kaggle")
    for label, policy in (("freq_cache[policy=lfu]", "freq_cache[policy=lfu]"), ("belady, the optimum", "belady")):
        rows = [row for row in replayed.rows if row.policy == policy]
        assert line(axes, label).get_xdata() == pytest.approx([100 * row.cache_ratio for row in rows], rel=1e-4)
        assert line(axes, label).get_ydata() == pytest.approx([100 - 100 * row.traffic.hit_rate for row in rows])
    assert line(axes, "belady, the optimum").get_color() == "#000000"


def test_figures_without_data_are_left_out():
    failed = [fabricate.record("cache", status=Status.CRASHED, reason="x")]
    assert figures(source(failed)) == {}
    assert figures(source([])) == {}
    resident = fabricate.rounds("torchrec_uvm", [1e5], setting=CPU, offloads=False, baseline=None)
    assert figures(source(resident)) == {}
    assert "miss_ratio" not in figures(source(resident, simulations=(simulation(rows=()),)))


def test_rows_on_a_drive_have_a_figure_of_their_own_and_no_place_among_others():
    small = contest(512 * MIB, ours=(0.8, 0.4), mapped=(0.12, 0.06))
    large = [run for run in contest(2 * GIB) if run.cell.system != "rocksdb_table"]
    given = source([*small, *contest(), *large])
    drawn = figures(given)
    assert list(drawn) == ["throughput_by_budget"]
    whole, alone = drawn["throughput_by_budget"].axes
    for axes in (whole, alone):
        assert line(axes, "full_ram").get_ydata() == [1, 1]
    points = drawn_points(whole)
    assert points.keys() == {OURS, "mapped_table", "rocksdb_table"}
    assert [point[:2] for point in points[OURS]] == [
        (budget, pytest.approx(ratio)) for budget, ratio in ((512 * MIB, 0.8), (GIB, 0.95), (2 * GIB, 0.95))
    ]
    assert points[OURS][1][2:] == pytest.approx((0.95 * 0.9755, 0.95 * 1.0252), rel=1e-3)
    assert len(points["rocksdb_table"]) == 2
    assert [sheet.name for sheet in sheets(given.groups)] == ["comparison"]


def test_files_repeat_whatever_the_order_of_records_and_name_no_date_or_tool(tmp_path):
    records, more = [*fabricate.gpu_run(), *fabricate.cpu_run()], {"simulations": (simulation(),)}
    first = publish(source(records, **more), tmp_path / "first")
    second = publish(source(fabricate.shuffled(records, seed=5), **more), tmp_path / "second")
    assert [path.name for path in first] == [path.name for path in second]
    assert [one.read_bytes() for one in first] == [other.read_bytes() for other in second]
    referred = []
    for text in (path.read_text(encoding="utf-8") for path in first if path.suffix == ".svg"):
        assert ">freq_cache[" in text or ">fbgemm_uvm_caching[" in text
        assert "<dc:date>" not in text and "Matplotlib" not in text
        referred.append({part.split(")")[0] for part in text.split("url(#")[1:]})
    assert len(referred) == 2 and all(referred)
    assert not referred[0] & referred[1]  # they share a page
