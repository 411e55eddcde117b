"""Equal records give equal files of figures, and a figure's text stays text."""

from __future__ import annotations

import pytest

from suite.report.panels import round_ticks
from suite.report.publish import write_figures
from tests.unit.suite import fabricate
from tests.unit.suite.report.figure_scenes import simulation
from tests.unit.suite.report.report_scenes import source


def test_files_repeat_whatever_the_order_of_records_and_name_no_date_or_tool(tmp_path):
    records, more = fabricate.gpu_run(), {"simulations": (simulation(),)}
    first = write_figures(source(records, **more), tmp_path / "first")
    second = write_figures(source(fabricate.shuffled(records, seed=5), **more), tmp_path / "second")
    assert [path.name for path in first] == [path.name for path in second]
    referred = []
    for one, other in zip(first, second, strict=True):
        text = one.read_text(encoding="utf-8")
        assert text == other.read_text(encoding="utf-8")
        assert ">freq_cache[" in text or ">fbgemm_uvm_caching[" in text
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
