"""`python -m workloads describe` on prepared rows, on real samples and on synthetic streams."""

import json
import random

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from workloads import progress
from workloads.__main__ import app
from workloads.describe import ALL_TABLES, READ_ROWS
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})


def prepared(tmp_path, dataset, source):
    result = run("prepare", dataset, "--input", source, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    return tmp_path / dataset


def described(*words):
    """Rows of the description's tables, each by its name."""
    result = run("describe", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """700 generated rows: 600 train, 50 validation, 50 test."""
    draw = random.Random(3)
    rows = [
        [draw.randrange(2), *range(13), *(f"{int(draw.paretovariate(0.5)) % 5000:x}" for _ in range(26))]
        for _ in range(700)
    ]
    tmp_path = tmp_path_factory.mktemp("data")
    (tmp_path / "train.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return prepared(tmp_path, "criteo_kaggle", tmp_path / "train.txt")


def test_figures_of_prepared_rows_equal_those_of_the_raw_file_in_the_order_of_time(folder):
    schema, found = SCHEMAS["criteo_kaggle"], described(folder)
    names = [name for name, _ in schema.categorical]
    columns = ["label", *schema.dense, *names]
    raw = pd.read_csv(folder.parent / "train.txt", dtype=str, sep="\t", header=None, names=columns).fillna("missing")
    labels = raw["label"].astype(int)
    stops = np.cumsum([split["rows"] for split in found["splits"]])
    assert stops[-1] == len(raw)
    for split, start, stop in zip(found["splits"], [0, *stops], stops, strict=False):
        assert split["ctr"] == pytest.approx(labels[start:stop].mean())
    train = raw[: stops[0]]
    counts = {name: train[name].value_counts() for name in names}
    counts[ALL_TABLES] = pd.concat(counts[name] for name in names).sort_values(ascending=False)
    for table in found["tables"]:
        expected = counts[table["table"]].to_numpy()
        assert (table["distinct"], table["accesses"]) == (len(expected), expected.sum())
        tops = [expected[: -(-len(expected) * thousandths // 1000)].sum() for thousandths in (1, 10, 50, 100)]
        shares = [table[name] for name in ("top_0.1", "top_1", "top_5", "top_10")]
        assert shares == pytest.approx(np.array(tops) / expected.sum())


def test_tables_are_plain_text_of_80_columns_with_nothing_cut_and_progress_is_plain_lines(folder, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    result = run("describe", folder)
    assert result.exit_code == 0, result.output
    assert "criteo_kaggle: prepared data, 26 tables" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    for text in ("…", "...", "\x1b"):
        assert text not in result.output
    assert "reading train: 600 of 600, 100%" in result.stderr


def test_limit_takes_leading_rows(folder):
    found = described(folder, "--rows", 100)
    assert [(split["rows"], split["rows_read"]) for split in found["splits"]] == [(600, 100), (50, 50), (50, 50)]
    assert {table["accesses"] for table in found["tables"][1:]} == {100}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a prepared directory, or a stream with --synthetic NAME"),
        (("absent", "--synthetic", "avazu"), "name a prepared directory, or a stream with --synthetic NAME"),
        (("absent",), "absent holds no prepared dataset. Make one: python -m workloads prepare"),
        (("foreign",), "foreign holds no prepared dataset"),
        (("--synthetic", "avazu"), "--synthetic avazu needs --rows"),
        (("--synthetic", "movies", "--rows", "9"), "unknown dataset 'movies'"),
        (("--synthetic", "avazu", "--rows", "9"), "no training row to read: raise --rows to at least 2,048"),
    ],
)
def test_user_errors_exit_2_with_a_sentence_and_no_traceback(tmp_path, monkeypatch, words, message):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    result = run("describe", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_two_datasets_in_one_directory_are_named(folder, tmp_path):
    for name, dataset in (("one", "criteo_kaggle"), ("two", "avazu")):
        (tmp_path / name).mkdir()
        manifest = json.loads((folder / "manifest.json").read_text())
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest | {"dataset": dataset}))
    result = run("describe", tmp_path)
    assert result.exit_code == 2
    assert "holds several datasets: name one" in result.stderr


def test_synthetic_stream_is_described_as_its_seed_draws_it():
    found = described("--synthetic", "avazu@drift", "--rows", 3000, "--seed", 1)
    assert [split["rows_read"] for split in found["splits"]] == [READ_ROWS] * 3
    batch = SyntheticWorkload.create("avazu@drift", batch_size=READ_ROWS, seed=1).batch(0)
    for table in found["tables"][1:]:
        ids = batch.features[table["table"]].values()
        assert (table["accesses"], table["distinct"]) == (len(ids), len(ids.unique()))
