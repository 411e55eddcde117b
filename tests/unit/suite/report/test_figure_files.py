"""Nothing in a figure is cut off or drawn over, and equal records give equal files."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from suite.report.figures import figures
from suite.report.panels import round_ticks
from suite.report.publish import write_figures
from tests.unit.suite import fabricate
from tests.unit.suite.report.figure_scenes import (
    simulation,
    stress,
)
from tests.unit.suite.report.report_scenes import source


@pytest.fixture(scope="module")
def crowded():
    sims = tuple(simulation(name) for name in ("criteo_kaggle", "avazu", "criteo_1tb"))
    return source(stress(), simulations=sims)


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
@pytest.mark.parametrize("name", ["throughput_by_bytes", "miss_ratio"])
def test_nothing_is_cut_off_or_drawn_over_another_in_a_crowded_figure(name, crowded_figures, monkeypatch):
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
    (legend,) = figure.legends
    for axes in figure.axes:
        if axes.get_visible():
            assert not axes.get_window_extent().overlaps(legend.get_window_extent())
            assert min(axes.get_window_extent().size) > 1.2 * figure.dpi


@pytest.mark.slow
def test_files_repeat_whatever_the_order_of_records(tmp_path, monkeypatch):
    monkeypatch.setattr("suite.report.publish._DPI", 40)
    records = fabricate.cpu_run()
    more = {"simulations": (simulation(),)}
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
            assert path.stat().st_size < 250_000
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


@pytest.mark.parametrize("low", [1.1, 5.1])
@pytest.mark.parametrize("factor", [1.96, 90, 1e12])
def test_ticks_of_bytes_are_few_and_never_none(low, factor):
    ticks = round_ticks(low * 1e6, low * 1e6 * factor)
    assert 1 <= len(ticks) <= 4
    assert all(low * 1e6 <= tick <= low * 1e6 * factor for tick in ticks)
