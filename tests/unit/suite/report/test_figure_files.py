"""Nothing in a figure is drawn over, and equal records give equal files."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

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
def test_nothing_is_drawn_over_another_in_a_crowded_figure(name, crowded_figures, monkeypatch):
    figure = crowded_figures[name]
    texts = drawn_texts(figure, monkeypatch)
    assert len(texts) > 20
    for (one, box), (other, across) in itertools.combinations(texts, 2):
        wide = min(box.x1, across.x1) - max(box.x0, across.x0)
        high = min(box.y1, across.y1) - max(box.y0, across.y0)
        assert wide <= 1 or high <= 1, f"{one!r} lies over {other!r}"
    for axes in figure.axes:
        if axes.get_visible():
            assert min(axes.get_window_extent().size) > 1.2 * figure.dpi


@pytest.mark.slow
def test_files_repeat_whatever_the_order_of_records(tmp_path):
    records = fabricate.cpu_run()
    more = {"simulations": (simulation(),)}
    first = write_figures(source(records, **more), tmp_path / "first")
    second = write_figures(source(fabricate.shuffled(records, seed=5), **more), tmp_path / "second")
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_svg_keeps_text_names_no_date_or_tool_and_shares_no_name(tmp_path):
    referred = []
    for path in write_figures(source(fabricate.gpu_run(), simulations=(simulation(),)), tmp_path):
        text = path.read_text(encoding="utf-8")
        assert ">freq_cache[" in text or ">fbgemm_uvm_caching[" in text
        assert path.stat().st_size < 250_000
        assert "<dc:date>" not in text and "Matplotlib" not in text
        referred.append({part.split(")")[0] for part in text.split("url(#")[1:]})
    assert len(referred) == 2 and all(referred)
    assert not referred[0] & referred[1]  # they share a page


@pytest.mark.parametrize("low", [1.1, 5.1])
@pytest.mark.parametrize("factor", [1.96, 90, 1e12])
def test_ticks_of_bytes_are_few_and_never_none(low, factor):
    ticks = round_ticks(low * 1e6, low * 1e6 * factor)
    assert 1 <= len(ticks) <= 4
    assert all(low * 1e6 <= tick <= low * 1e6 * factor for tick in ticks)
