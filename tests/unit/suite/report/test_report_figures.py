"""Figures show what was recorded, nothing in them is cut off or drawn over, and equal records give equal files."""

from __future__ import annotations

import itertools
import statistics

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text
from PIL import Image

from suite.records.groups import group_records
from suite.records.status import Status
from suite.records.store import StoreError
from suite.report.contests import contests
from suite.report.figures.throughput import byte_ticks
from suite.report.figures.words import wrapped
from suite.report.figures.write import figures, write_figures
from suite.report.source import Source
from suite.simulate.results import Configuration, Row, Simulation, Stream, Traffic
from suite.tables.statistics import mean_of_rounds
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
            speed = 200_000 * (1 + number) * (1 + order)
            failed = name == "torchrec_uvm" and workload == "avazu"
            made = fabricate.rounds(
                name, [speed, 1.02 * speed, 0.99 * speed], setting={"workload": workload},
                **({"status": Status.OOM_DEVICE, "reason": "full", "phase": "build"} if failed else {}),
            )  # fmt: skip
            if not failed:
                anatomy = {
                    f"{tier}/{purpose}": (number + 1) * size
                    for tier, size in (("device", GB // 8), ("host", GB), ("disk", 3 * GB))
                    for purpose in ("rows", "state", "index", "staging")
                }
                made = [resized(one, device_used_bytes=GB * (number + 1), anatomy_bytes=anatomy) for one in made]
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


def test_every_contender_stands_at_its_bytes_and_speed_with_its_interval():
    given = source(stress())
    figure = figures(given)["throughput_by_bytes"]
    for contest in contests(given.groups):
        axes = axes_of(figure, contest.group.title)
        found = {}
        for container in axes.containers:
            assert isinstance(container, ErrorbarContainer)
            (x,), (y,) = container.lines[0].get_data()
            ((_, low), (_, high)) = container.lines[2][0].get_segments()[0]
            found[container.get_label().replace("\n", "")] = (x, y, low, high)
        assert found.keys() == {contender.system for contender in contest.contenders}
        for contender in contest.contenders:
            expected = mean_of_rounds(contender.speeds.values())
            assert found[contender.system] == pytest.approx(
                (contender.device_bytes, contender.samples_per_s, expected.low, expected.high)
            )


def test_frontier_never_falls_and_ends_with_the_fastest():
    records = [
        resized(record, device_used_bytes=size * GB)
        for system, size, speed in (("small", 1, 300), ("larger_and_slower", 2, 200), ("largest", 4, 500))
        for record in fabricate.rounds(system, [1000 * speed, 1000 * speed])
    ]
    axes = axes_of(figures(source(records))["throughput_by_bytes"], "Criteo Kaggle")
    step = line(axes, "best within the bytes")
    assert step.get_drawstyle() == "steps-post"
    assert step.get_xdata()[:3] == pytest.approx([GB, 2 * GB, 4 * GB])
    assert step.get_ydata() == pytest.approx([300_000, 300_000, 500_000, 500_000])


def test_baseline_is_a_line_with_its_bytes_and_says_ram_on_a_cpu():
    gpu = axes_of(figures(source(fabricate.gpu_run()))["throughput_by_bytes"], "Criteo Kaggle")
    speeds = [1_600_000, 1_640_000, 1_620_000]
    assert line(gpu, "all-on-device baseline").get_ydata()[0] == pytest.approx(statistics.geometric_mean(speeds))
    assert "all on the" in gpu.texts[0].get_text() and "3 GB" in gpu.texts[0].get_text()
    on_cpu = fabricate.rounds("full_gpu", [9_000, 9_100], setting=CPU, offloads=False, placement="all in RAM")
    budgets = [
        record
        for size in (10, 20)
        for record in fabricate.rounds("cache[tier=file]", [7_000, 7_100], setting=CPU | {"device_budget_bytes": size})
    ]
    cpu = axes_of(figures(source([*on_cpu, *budgets]))["throughput_by_bytes"], "Criteo Kaggle")
    assert "all in RAM" in cpu.texts[0].get_text() and "173 MB" in cpu.texts[0].get_text()
    assert len(cpu.containers) == 1
    assert len(cpu.containers[0].lines[0].get_xdata()) == 2


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


def test_auroc_stands_beside_the_reference_with_the_difference():
    records = [
        *fabricate.rounds("reference", [1e5, 1e5], auroc=0.79),
        *fabricate.rounds("full_gpu", [1e5, 1e5], auroc=0.79),
        *fabricate.rounds("cache", [1e5, 1e5], auroc=0.7911),
        *fabricate.rounds("no_embeddings", [1e5, 1e5], auroc=0.61),
        *fabricate.rounds("torchrec_uvm", [0], status=Status.CRASHED, reason="x"),
    ]
    axes = axes_of(figures(source(records))["auroc_parity"], "Criteo Kaggle")
    at, words = heights(axes), beside(axes)
    assert list(at) == ["reference", "full_gpu", "cache", "torchrec_uvm", "no_embeddings (control)"]
    assert at["no_embeddings (control)"] - at["torchrec_uvm"] > 1
    points = dict(zip(line(axes, "system").get_ydata(), line(axes, "system").get_xdata(), strict=True))
    assert points == {at["reference"]: 0.79, at["full_gpu"]: 0.79, at["cache"]: 0.7911}
    assert line(axes, "control without embeddings").get_xdata() == [0.61]
    assert line(axes, "the reference").get_xdata()[0] == 0.79
    assert line(axes, "best possible: the model that planted the labels").get_xdata()[0] == 0.8012
    assert words[at["full_gpu"]] == "0.79000 (=)"
    assert words[at["cache"]] == "0.79110 (+0.0011)"
    assert words[at["torchrec_uvm"]] == "n/a: crashed"


def test_real_labels_have_no_best_possible():
    axes = axes_of(figures(source(fabricate.cpu_run()))["auroc_parity"], "Avazu")
    assert not [one for one in axes.lines if one.get_label().startswith("best")]


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
    for name in ("auroc_parity", "memory"):
        axes = drawn[name].axes[0]
        assert beside(axes)[heights(axes)["cache"]] == "n/a: wrong_answer"


def test_some_rounds_failed_is_said():
    records = [*fabricate.rounds("cache", [1e5, 1e5])]
    records.append(fabricate.record("cache", round=2, status=Status.TIMEOUT, reason="slow"))
    axes = figures(source(records))["memory"].axes[0]
    assert list(heights(axes)) == ["cache, 2 of 3 rounds"]


def test_budgets_of_one_stream_share_a_panel_and_are_named():
    records = [
        record
        for size in (8, 16)
        for record in fabricate.rounds("cache", [1e5, 1e5], setting=CPU | {"device_budget_bytes": size * 10**6})
    ]
    figure = figures(source(records))["auroc_parity"]
    assert len([axes for axes in figure.axes if axes.get_visible()]) == 1
    assert list(heights(figure.axes[0])) == ["cache, 7.6 MiB", "cache, 15.3 MiB"]


def test_machines_apart_stand_in_panels_of_their_own_and_are_named():
    figure = figures(source(fabricate.gpu_run() + fabricate.cpu_run()))["auroc_parity"]
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes if axes.get_visible()]
    assert any("NVIDIA H100" in title for title in titles)
    assert any("on a CPU: AMD EPYC" in title for title in titles)
    alone = figures(source(fabricate.cpu_run()))["auroc_parity"]
    assert "on a CPU: AMD EPYC" in alone.get_suptitle()
    assert "real data" in alone.get_suptitle()


# What is left out


def test_figures_without_data_are_left_out():
    failed = [fabricate.record("cache", status=Status.CRASHED, reason="x")]
    assert figures(source(failed)) == {}
    assert figures(source([])) == {}
    resident = fabricate.rounds("torchrec_uvm", [1e5], setting=CPU, offloads=False, placement="host-resident")
    assert list(figures(source(resident))) == ["auroc_parity", "memory"]
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
@pytest.mark.parametrize("name", ["throughput_by_bytes", "miss_ratio", "auroc_parity", "memory"])
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
@pytest.mark.parametrize("name", ["throughput_by_bytes", "miss_ratio", "auroc_parity", "memory"])
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
        assert path.stat().st_size < (250_000 if path.suffix == ".svg" else 300_000), path.name


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
