"""Figures show what was recorded, nothing in them is cut off or drawn over, and equal records give equal files."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text
from PIL import Image

from suite.records.groups import group_records
from suite.records.status import Status
from suite.records.store import StoreError
from suite.report.figures.throughput import byte_ticks
from suite.report.figures.words import wrapped
from suite.report.figures.write import figures, write_figures
from suite.report.source import Source
from suite.simulate.results import Configuration, Row, Simulation, Stream, Traffic
from suite.tables.rows import merged_rows, noise_floor
from tests.unit.suite import fabricate

GB = fabricate.GB
CPU = {"device": "cpu", "max_rows": 1_000_000, "cache_ratio": None}


def source(records, **more):
    return Source(groups=tuple(group_records(records)), **more)


def resized(record, **memory):
    """The record with other memory."""
    found = record.measurement
    changed = found.model_copy(update={"memory": found.memory.model_copy(update=memory)})
    return record.model_copy(update={"measurement": changed})


def simulation(name="criteo_kaggle", policies=("freq_cache[policy=lru]", "belady", "compulsory"), complete=True):
    rows = 1000
    ratios = (0.01, 0.1, 0.5)
    made = []
    for number, policy in enumerate(policies):
        for ratio in ratios:
            missed = round(1000 * (1 - ratio) / (1 + number))
            traffic = Traffic(
                batches=10, lookups=4000, unique_ids=1000, unique_misses=missed, lookup_misses=None,
                rows_fetched=missed,
                rows_written_back=0, bytes_fetched=4 * missed, bytes_written_back=0, overflow_batches=0, details={},
            )  # fmt: skip
            made.append(
                Row(
                    policy=policy,
                    cache_ratio=ratio,
                    slots_asked=int(ratio * rows),
                    slots=1,
                    status="ok",
                    traffic=traffic,
                )
            )
    made.append(Row(policy=policies[0], cache_ratio=1, slots_asked=rows, slots=0, status="cannot_replay", reason="x"))
    return Simulation(
        stream=Stream(
            name=name, workload=name, scale="smoke", batch_size=64, seed=3, frequency_prefix=1, tables={"C1": rows},
            rows=rows, batches=50,
        ),
        configuration=Configuration(
            policies=tuple(policies), cache_ratios=ratios, warmup_batches=5, counted_batches=10, optimizer="sgd",
            embedding_dim=16,
        ),
        environment=fabricate.environment(gpu=False),
        complete=complete,
        rows=tuple(made),
    )  # fmt: skip


def fine_curve(**changes):
    stream = {"trace_file": None, "data_dir": None, "scale": "smoke", "batch_size": 64, "seed": 3}
    curve = {
        "sampled_share": 1.0,
        "slots": [1, 20, 100, 400, 1000],
        "unique_miss_rate": [1.0, 0.8, 0.5, 0.3, 0.2],
        "holds_every_batch": [False, False, True, True, True],
    }
    return (
        {"trace": "criteo_kaggle", "warmup_batches": 5, "counted_batches": 10, "stream": stream}
        | {"curves": {"all": curve}}
        | changes
    )


def stress():
    """Twelve systems with long names on three datasets, on a GPU, with a failure."""
    names = [
        "reference", "full_gpu", "no_embeddings",
        *(f"freq_cache[look_ahead={n},policy={policy},row_type=bf16]" for n in (0, 64) for policy in ("lfu", "static")),
        "fbgemm_uvm", "fbgemm_uvm_caching[policy=lfu]", "torchrec_uvm_caching",
        "my_package.systems.caching:MyVeryOwnCache",
        "torchrec_uvm",
    ]  # fmt: skip
    assert len(names) == 12
    records = []
    for order, workload in enumerate(("criteo_kaggle", "avazu", "criteo_1tb")):
        for number, name in enumerate(names):
            speed = fabricate.BASELINE * (1 if name == "full_gpu" else 0.9 - 0.05 * number - 0.02 * order)
            failed = name == "torchrec_uvm" and workload == "avazu"
            made = fabricate.rounds(
                name, [speed, 1.02 * speed, 0.99 * speed], setting={"workload": workload}, knew="nothing",
                **({"status": Status.OOM_DEVICE, "reason": "full", "phase": "build"} if failed else {}),
            )  # fmt: skip
            if not failed:
                anatomy = {
                    f"{tier}/{purpose}": (number + 1) * size
                    for tier, size in (("device", GB // 8), ("host", GB), ("disk", 3 * GB))
                    for purpose in ("rows", "state", "index", "staging")
                }
                made = [resized(one, anatomy_bytes=anatomy) for one in made]
            records += made
    return records


def axes_of(figure, title):
    return next(axes for axes in figure.axes if axes.get_title().startswith(title) and axes.get_visible())


def line(axes, label):
    return next(one for one in axes.lines if one.get_label() == label)


def bars(axes, label):
    """Start and width of every bar of a kind, by the place of its middle."""
    found = next(one for one in axes.containers if one.get_label() == label)
    return {bar.get_y() + bar.get_height() / 2: (bar.get_x(), bar.get_width()) for bar in found}


def heights(axes):
    """Of each entry's line, by its label without line breaks."""
    return {
        tick.get_text().replace("\n", ""): place
        for tick, place in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    }


def beside(axes):
    """Words right of a panel, by height."""
    return {text.get_position()[1]: text.get_text() for text in axes.texts}


# What is drawn


def sweep(workload="criteo_kaggle", *, noise=0.02, device="cuda"):
    """A cache at two sizes that costs 20 and 10 %, a table on the host, and the baseline with an A/A ratio of 1.04."""
    records = []
    for ratio, speed in ((0.01, 0.8), (0.05, 0.9)):
        setting = {"workload": workload, "cache_ratio": ratio, "device": device}
        for name, share, anatomy in (
            ("full_gpu", 1.04, {"device/rows": 100 * GB // 10}),
            ("cache", speed, {"device/rows": int(ratio * GB), "device/index": GB // 1000}),
            ("torchrec_uvm", 0.5, {"host/rows": GB}),
            ("no_embeddings", 2, {}),
        ):
            made = fabricate.rounds(name, [share * fabricate.BASELINE] * 3, setting=setting, noise=noise)
            records += [resized(one, anatomy_bytes=anatomy) for one in made]
    return records


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
        (group.cell.cache_ratio * GB + GB // 1000, row.ratio, row.ratio_low, row.ratio_high)
        for group in given.groups
        for row in merged_rows(group)
        if row.system == "cache"
    ]
    assert {round(ratio, 9) for _, ratio, _, _ in expected} == {0.8, 0.9}
    assert sorted(points["cache"]) == [pytest.approx(point) for point in sorted(expected)]
    assert line(axes, "full_gpu").get_xydata().tolist() == [[10 * GB, 1]]
    (band,) = [patch for patch in axes.patches if patch.get_label() == "noise"]
    noise = max(noise_floor(merged_rows(group)) for group in given.groups)
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
        *fabricate.rounds("same", [1.0, 1.0], computes_as="full_gpu"),
        *fabricate.rounds("failed", [1e6]),
        fabricate.record("failed", round=1, status=Status.TIMEOUT, reason="slow"),
        *fabricate.rounds("wrong", [1e6], checked=fabricate.verification(passed=False)),
    ]
    assert "throughput_by_bytes" not in figures(source(bad))
    drawn = figures(source([*bad, *fabricate.rounds("good", [8e5] * 2)]))["throughput_by_bytes"]
    assert drawn_points(drawn.axes[0]).keys() == {"good"}


def test_quality_is_drawn_by_samples_and_by_seconds_and_equal_systems_are_called_equal():
    records = sweep()
    slower = [one for one in records if one.cell.system == "cache"]
    figure = figures(source(records))["quality_over_time"]
    loss, loss_s, auroc, auroc_s = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in (loss, loss_s, auroc, auroc_s)] == ["samples", "seconds"] * 2
    points = slower[0].measurement.quality.points
    curve = line(auroc, "cache")
    assert list(curve.get_xdata()) == [point.samples for point in points]
    assert curve.get_ydata() == pytest.approx([point.auroc for point in points])
    speed = 0.8 * fabricate.BASELINE  # of the smallest cache
    assert any(
        list(one.get_xdata()) == pytest.approx([point.samples / speed for point in points]) for one in auroc_s.lines
    )
    assert loss.texts[0].get_text() == "3 systems\nequal"  # without the control
    widths = [one.get_linewidth() for one in auroc.lines if one.get_label() != "no_embeddings"]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == len(widths)
    other = fabricate.rounds("stray", [1e6] * 3, auroc=0.7912, setting={"cache_ratio": 0.01})
    auroc = figures(source([*records, *other]))["quality_over_time"].axes[2]
    assert auroc.texts[0].get_text() == "4 systems at\nmost 0.0001 apart"


def test_quality_leaves_out_what_was_not_looked_at():
    """AUROC of a part whose labels are equal, seconds of who was not timed, records without points."""
    one = fabricate.record("cache", computes_as="full_gpu")
    quality = one.measurement.quality
    first = quality.points[0].model_copy(update={"auroc": None})
    part = quality.model_copy(update={"points": (first, *quality.points[1:])})
    axes = figures(source([with_quality(one, part)]))["quality_over_time"].axes
    assert [len(each.lines) for each in axes] == [1, 0, 1, 0]
    assert len(axes[2].lines[0].get_xdata()) == len(quality.points) - 1
    assert "quality_over_time" not in figures(source([with_quality(one, quality.model_copy(update={"points": ()}))]))


def with_quality(record, quality):
    return record.model_copy(update={"measurement": record.measurement.model_copy(update={"quality": quality})})


def test_miss_curves_hold_the_simulated_rates_and_say_so():
    given = source([], simulations=(simulation(),), curves=(fine_curve(),))
    drawn = figures(given)
    assert list(drawn) == ["miss_ratio"]
    figure = drawn["miss_ratio"]
    assert "simulated" in figure.get_suptitle()
    axes = axes_of(figure, "criteo_kaggle")
    for label, policy in (("freq_cache[policy=lru]", "freq_cache[policy=lru]"), ("belady, the optimum", "belady")):
        rows = [row for row in given.simulations[0].rows if row.policy == policy and row.traffic is not None]
        assert line(axes, label).get_xdata() == pytest.approx([100 * row.cache_ratio for row in rows])
        assert line(axes, label).get_ydata() == pytest.approx([row.traffic.unique_misses / 10 for row in rows])
    assert line(axes, "belady, the optimum").get_color() == "#000000"
    # a smaller cache than the largest batch misses more than the stack distances say
    fine = line(axes, "lru at every size, by stack distance")
    assert fine.get_xdata() == pytest.approx([10, 40])
    assert fine.get_ydata() == pytest.approx([50, 30])


@pytest.mark.parametrize("changes", [{"trace": "avazu"}, {"warmup_batches": 6}, {"stream": None}])
def test_curve_of_another_stream_is_not_drawn(changes):
    given = source([], simulations=(simulation(),), curves=(fine_curve(**changes),))
    labels = {one.get_label() for one in figures(given)["miss_ratio"].axes[0].lines}
    assert labels == {"freq_cache[policy=lru]", "belady, the optimum", "compulsory"}


def test_interrupted_simulation_is_called_one():
    figure = figures(source([], simulations=(simulation(complete=False),)))["miss_ratio"]
    assert "interrupted" in figure.axes[0].get_title()


def test_of_many_policies_the_choice_is_drawn_and_look_ahead_is_dashed():
    policies = [
        *(f"freq_cache[policy={policy}{ahead}]" for ahead in ("", ",look_ahead=16", ",look_ahead=64")
          for policy in ("static", "lfu", "lru")),
        *("lru", "s3fifo", "sieve", "colossalai[policy=dataset]", "cdlrm", "fae", "uvm", "windowed"),
        *("fbgemm_uvm_caching[policy=lru]", "fbgemm_uvm_caching[policy=lfu]", "belady", "compulsory"),
    ]  # fmt: skip
    axes = figures(source([], simulations=(simulation(policies=policies),)))["miss_ratio"].axes[0]
    labels = {one.get_label() for one in axes.lines}
    assert len(labels) == 12
    assert not labels & {"sieve", "fae", "uvm", "freq_cache[policy=lru,look_ahead=16]"}
    plain, ahead = line(axes, "freq_cache[policy=lfu]"), line(axes, "freq_cache[policy=lfu,look_ahead=64]")
    assert plain.get_color() == ahead.get_color()
    assert (plain.get_linestyle(), ahead.get_linestyle()) == ("-", "--")
    assert ahead.get_markerfacecolor() == "white" != plain.get_markerfacecolor()
    others = [one for one in axes.lines if "look_ahead" not in one.get_label() and "belady" not in one.get_label()]
    assert len({one.get_marker() for one in others}) == len(others)


def test_memory_stacks_purposes_by_tier_and_marks_peaks():
    figure = figures(source(fabricate.gpu_run()))["memory"]
    device, host = (
        next(one for one in figure.axes if one.get_xlabel() == f"{tier}, bytes") for tier in ("device", "host")
    )
    at = heights(device)
    place = at["cache[policy=lfu]"]
    assert bars(device, "rows")[place] == (0, 172_000_000)
    assert bars(device, "state")[place] == (172_000_000, 1_350_000)
    assert bars(host, "rows")[place] == (0, 17 * GB)
    for axes, label, size in (
        (device, "torch's peak allocated", 1.25 * GB),
        (device, "torch's peak reserved", 2 * GB),
        (device, "the driver's peak", 3 * GB),
        (host, "peak resident memory (RSS)", 18.5 * GB),
    ):
        marks = line(axes, label)
        assert dict(zip(marks.get_ydata(), marks.get_xdata(), strict=True))[at["cache[policy=lfu]"]] == size
    assert beside(device)[at["reference"]] == "n/a: oom_device"
    assert beside(device)[at["cache[policy=lfu]"]] == "173 MB"


def test_on_a_cpu_torchs_peaks_are_absent_and_ram_is_said():
    figure = figures(source(fabricate.cpu_run()))["memory"]
    labels = {one.get_label() for axes in figure.axes for one in axes.lines}
    assert "peak resident memory (RSS)" in labels
    assert not any("torch" in label or "driver" in label for label in labels)
    assert figure.axes[0].get_xlabel() == "device, played by RAM, bytes"
    assert "which RAM plays" in figure.legends[0].get_title().get_text()


def test_wrong_answer_has_no_numbers():
    wrong = fabricate.rounds("cache", [1e5], checked=fabricate.verification(passed=False))
    wrong = [record.model_copy(update={"status": Status.WRONG_ANSWER}) for record in wrong]
    drawn = figures(source([*fabricate.rounds("reference", [1e5]), *wrong]))
    axes = drawn["memory"].axes[0]
    assert beside(axes)[heights(axes)["cache"]] == "n/a: wrong_answer"


def test_some_rounds_failed_is_said():
    records = [*fabricate.rounds("cache", [1e5, 1e5])]
    records.append(fabricate.record("cache", round=2, status=Status.TIMEOUT, reason="slow"))
    axes = figures(source(records))["memory"].axes[0]
    assert list(heights(axes)) == ["cache, 2 of 3 rounds"]


def test_of_several_budgets_of_one_stream_memory_shows_the_smallest_and_names_it():
    records = [
        record
        for size in (8, 16)
        for record in fabricate.rounds("cache", [1e5, 1e5], setting=CPU | {"device_budget_bytes": size * 10**6})
    ]
    figure = figures(source(records))["memory"]
    assert list(heights(figure.axes[0])) == ["cache, 7.6 MiB"]


def test_machines_apart_stand_in_panels_of_their_own_and_are_named():
    figure = figures(source(fabricate.gpu_run() + fabricate.cpu_run()))["memory"]
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes if axes.get_visible()]
    assert any("NVIDIA H100" in title for title in titles)
    assert any("on a CPU: AMD EPYC" in title for title in titles)
    alone = figures(source(fabricate.cpu_run()))["memory"]
    assert "on a CPU: AMD EPYC" in alone.get_suptitle()
    assert "real data" in alone.get_suptitle()


# What is left out


def test_figures_without_data_are_left_out():
    failed = [fabricate.record("cache", status=Status.CRASHED, reason="x")]
    assert figures(source(failed)) == {}
    assert figures(source([])) == {}
    resident = fabricate.rounds("torchrec_uvm", [1e5], setting=CPU, offloads=False, baseline=None)
    assert list(figures(source(resident))) == ["quality_over_time", "memory"]
    nothing = simulation().model_copy(update={"rows": ()})
    assert "miss_ratio" not in figures(source(resident, simulations=(nothing,)))


# How it looks


@pytest.fixture(scope="module")
def crowded():
    sims = tuple(simulation(name) for name in ("criteo_kaggle", "avazu", "criteo_1tb"))
    return source(stress(), simulations=sims, curves=(fine_curve(),))


@pytest.fixture(scope="module")
def crowded_figures(crowded):
    """As they are laid out when written."""
    drawn = figures(crowded)
    for figure in drawn.values():
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return drawn


def drawn_texts(figure, monkeypatch):
    """Every text that reaches the canvas, with its extent in pixels."""
    found = []
    draw = Text.draw

    def noted(text, renderer, *rest, **more):
        if text.get_visible() and text.get_text().strip():
            found.append((text.get_text(), text.get_window_extent(renderer)))
        return draw(text, renderer, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", noted)
        figure.canvas.draw()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["throughput_by_bytes", "quality_over_time", "miss_ratio", "memory"])
def test_no_text_is_cut_off_or_drawn_over_another(name, crowded_figures, monkeypatch):
    figure = crowded_figures[name]
    texts = drawn_texts(figure, monkeypatch)
    assert len(texts) > 20
    for text, box in texts:
        assert box.x0 >= -0.5 and box.y0 >= -0.5, text
        assert box.x1 <= figure.bbox.x1 + 0.5 and box.y1 <= figure.bbox.y1 + 0.5, text
    for (one, box), (other, across) in itertools.combinations(texts, 2):
        wide = min(box.x1, across.x1) - max(box.x0, across.x0)
        high = min(box.y1, across.y1) - max(box.y0, across.y0)
        assert wide <= 1 or high <= 1, f"{one!r} lies over {other!r}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["throughput_by_bytes", "quality_over_time", "miss_ratio", "memory"])
def test_legend_lies_outside_the_data_and_panels_keep_their_size(name, crowded_figures):
    figure = crowded_figures[name]
    (legend,) = figure.legends
    for axes in figure.axes:
        if axes.get_visible():
            assert not axes.get_window_extent().overlaps(legend.get_window_extent())
            assert axes.get_window_extent().width > 1.2 * figure.dpi
            assert axes.get_window_extent().height > 1.2 * figure.dpi


@pytest.mark.slow
def test_files_of_many_systems_are_small(crowded, tmp_path):
    written = write_figures(crowded, tmp_path)
    assert len(written) == 8
    for path in written:
        assert path.stat().st_size < (250_000 if path.suffix == ".svg" else 320_000), path.name


def test_files_repeat_whatever_the_order_of_records(tmp_path, monkeypatch):
    monkeypatch.setattr("suite.report.figures.write._DPI", 40)
    records = fabricate.cpu_run()
    more = {"simulations": (simulation(),), "curves": (fine_curve(),)}
    first = write_figures(source(records, **more), tmp_path / "first")
    second = write_figures(source(fabricate.shuffled(records, seed=5), **more), tmp_path / "second")
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_svg_keeps_text_names_no_date_or_tool_and_shares_no_name_and_png_is_for_print(tmp_path):
    folder = tmp_path / "figures"
    referred = []
    for path in write_figures(source(fabricate.gpu_run()), folder):
        if path.suffix == ".svg":
            text = path.read_text(encoding="utf-8")
            assert ">fbgemm_uvm_caching[" in text
            assert "<dc:date>" not in text and "Matplotlib" not in text
            referred.append({part.split(")")[0] for part in text.split("url(#")[1:]})
        else:
            with Image.open(path) as picture:
                assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.01)
                assert "Software" not in picture.info
                assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
    assert not list(folder.glob(".*"))
    assert all(referred)
    for one, other in itertools.combinations(referred, 2):  # they share a page
        assert not one & other


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "figures").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot write .*figures.*choose a results directory"):
        write_figures(source(fabricate.gpu_run()), tmp_path / "figures")


# Their parts


@pytest.mark.parametrize("low", [1.1, 5.1, 2.14, 8.2])
@pytest.mark.parametrize("factor", [1.96, 7, 90, 1e5, 1e12])
def test_ticks_of_bytes_are_few_and_never_none(low, factor):
    ticks = byte_ticks(low * 1e6, low * 1e6 * factor)
    assert 1 <= len(ticks) <= 4
    assert all(low * 1e6 <= tick <= low * 1e6 * factor for tick in ticks)


def test_names_wrap_behind_brackets_and_never_lose_a_letter():
    name = "my_package.systems.caching:MyVeryOwnCacheWithoutAnyBreakInside[policy=lfu,look_ahead=64]"
    lines = wrapped(name).splitlines()
    assert "".join(lines) == name
    assert max(map(len, lines)) <= 32
    assert wrapped("fbgemm_uvm_caching[policy=lru]", 26) == "fbgemm_uvm_caching[\npolicy=lru]"
