"""The figures' command runs, at a size that says little."""

import generator_figures
import pytest

from workloads.schema import SCHEMAS


def test_every_workload_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    generator_figures.main(["--batch-size", "50", "--batches", "2"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[0] for line in lines] == list(SCHEMAS)
    ids = {line[0]: int(line[1].replace(",", "")) for line in lines}
    assert (ids["avazu"], ids["mlperf_dlrm_v2"]) == (13 * 50, 214 * 50)


def test_words_are_all_that_a_batch_draws() -> None:
    found = generator_figures.measure("avazu", batch_size=64, batches=1)
    tables, groups, columns = 13, 1, 8
    assert found["words"] == 64 * (tables + groups + 1 + columns)
