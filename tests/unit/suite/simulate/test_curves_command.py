import ast
import json

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from suite.simulate.curves import miss_curves
from suite.simulate.curves_command import curve_sizes, curves_command
from suite.simulate.models.model import Span
from suite.simulate.options import open_trace

SMOKE = ("--workload", "criteo_kaggle", "--scale", "smoke", "--warmup", "4", "--batches", "6")


def run(*arguments):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(curves_command)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    result = run(*SMOKE, "--split", "0.2", "--out", str(folder))
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.fixture(scope="module")
def smoke_curves():
    trace = open_trace(workload="criteo_kaggle", scale="smoke")
    return miss_curves(trace, Span(counted_from=4, stop=10), per_table=True)


def test_tables_fit_80_columns_and_name_what_was_followed(written):
    shown = written[1].stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "6 batches counted after 4 of warm-up" in shown
    assert "One LRU cache for all tables" in shown
    assert "9,998 slots, 20.000% of the rows" in shown
    assert "caches of their own have" in shown


def test_csv_holds_the_curves_of_the_library(written, smoke_curves):
    points = pd.read_csv(written[0] / "curves.csv")
    assert points["table"].drop_duplicates().tolist() == ["all", *(curve.name for curve in smoke_curves.tables)]
    for name, curve in [("all", smoke_curves.pooled), *((curve.name, curve) for curve in smoke_curves.tables)]:
        part = points[points["table"] == name]
        assert part["slots"].tolist() == curve_sizes(curve)
        assert part["unique_misses"].tolist() == [curve.misses(slots) for slots in part["slots"]]
        assert part["holds_every_batch"].tolist() == [slots >= curve.largest_batch for slots in part["slots"]]
        assert np.allclose(part["unique_miss_rate"], part["unique_misses"] / curve.unique_ids)


def test_the_printed_division_is_python_and_that_of_the_files(written):
    folder, result = written
    text = result.stdout[result.stdout.index("cache_rows={") + len("cache_rows=") :]
    printed = ast.literal_eval(text[: text.index("}") + 1])
    record = json.loads((folder / "curves.json").read_text())
    assert (record["trace"], record["warmup_batches"], record["counted_batches"]) == ("criteo_kaggle", 4, 6)
    assert record["curves"]["all"]["lookups"] == 6 * 256 * 26
    table = pd.read_csv(folder / "split.csv")
    assert printed == record["split"]["cache_rows"] == dict(zip(table["table"], table["slots"], strict=True))
    assert sum(printed.values()) == 9_998
    assert record["split"]["unique_misses"] == table["unique_misses"].sum()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--split", "1.5"), "--split: '1.5' is neither slots, 1 to the 49,990 rows, nor a share of the rows"),
        (("--split", "700"), "--split: 700 slots are too few to divide"),
        (("--prefetch",), "--prefetch says what --torchrec writes: give --torchrec too"),
        (("--torchrec", "/proc/x/plan.json"), "--torchrec: cannot make /proc/x"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, sentence):
    result = run(*SMOKE, *arguments)
    assert result.exit_code == 2
    assert f"error: {sentence}" in result.stderr
    assert result.stderr.count("\n") == 1
