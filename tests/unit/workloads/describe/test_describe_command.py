"""`python -m workloads describe` on prepared rows, on real samples and on synthetic streams."""

import json
import random

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from workloads import progress
from workloads.__main__ import app
from workloads.describe.description import ALL_TABLES, Description
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})


def prepared(tmp_path, dataset, source):
    result = run("prepare", dataset, "--input", source, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    return tmp_path / dataset


def described(*words, out):
    result = run("describe", *words, "--out", out)
    assert result.exit_code == 0, result.output
    return Description.model_validate_json((out / "description.json").read_text())


# Prepared rows


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


def test_tables_are_printed_and_files_written(folder, tmp_path):
    result = run("describe", folder, "--batch-size", 64, "--out", tmp_path / "new" / "out")
    assert result.exit_code == 0, result.output
    assert "criteo_kaggle: prepared data, 26 tables" in result.stdout
    assert "Wrote 3 files" in result.stdout
    assert {path.suffix for path in (tmp_path / "new" / "out").iterdir()} == {".json", ".csv", ".svg"}


def test_logs_get_progress_as_plain_lines(folder, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    result = run("describe", folder)
    assert "reading train: 600 rows, " in result.stderr
    assert "rows/s, 100%, 0:00:00 left" in result.stderr
    assert "\x1b" not in result.output


def test_what_row_0_stands_for_depends_on_how_ids_became_rows(folder, tmp_path):
    assert "row 0, for rare ids and ids not in the training split" in flat(run("describe", folder.parent).stdout)
    raw = folder.parent / "train.txt"
    result = run("prepare", "criteo_kaggle", "--input", raw, "--out", tmp_path, "--ids", "hashed", "--table-rows", 9)
    assert result.exit_code == 0, result.output
    assert "row 0, for missing ids, and ids that hash to it" in flat(run("describe", tmp_path).stdout)


def flat(text):
    return " ".join(text.split())


def test_id_outside_its_table_names_file_row_and_table(folder, tmp_path):
    copy = tmp_path / "criteo_kaggle"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    ids = np.load(copy / "validation_ids.npy")
    ids[7, 4] = 1_000_000
    np.save(copy / "validation_ids.npy", ids)
    result = run("describe", copy)
    assert result.exit_code == 2
    assert "validation_ids.npy, row 7: id 1000000 is outside table C5 of" in result.stderr
    assert "Make the data again: python -m workloads prepare" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a prepared directory, or a stream with --synthetic NAME"),
        (("absent", "--synthetic", "avazu"), "name a prepared directory, or a stream with --synthetic NAME"),
        (("absent",), "absent holds no prepared dataset. Make one: python -m workloads prepare"),
        (("foreign",), "foreign holds no prepared dataset"),
        (("--synthetic", "avazu"), "--synthetic avazu needs --rows"),
        (("--synthetic", "movies", "--rows", "9"), "--synthetic movies: unknown"),
        (("--synthetic", "avazu", "--rows", "9"), "raise --rows, or lower --batch-size"),
        (("--synthetic", "avazu", "--rows", "9", "--batch-size", "0"), "batch_size is 0"),
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


# Real samples


def test_figures_of_real_rows_equal_those_of_the_raw_file(samples, tmp_path):
    file, schema = samples / "criteo_kaggle_sample.tsv.gz", SCHEMAS["criteo_kaggle"]
    if not file.exists():
        pytest.skip(f"{file} is absent")
    names = [name for name, _ in schema.categorical]
    description = described(prepared(tmp_path, "criteo_kaggle", file), "--batch-size", 256, out=tmp_path / "out")
    columns = ["label", *schema.dense, *names]
    raw = pd.read_csv(file, dtype=str, sep="\t", header=None, names=columns).fillna("missing")
    labels = raw["label"].astype(int)
    stops = np.cumsum([split.rows for split in description.splits])
    assert stops[-1] == len(raw)
    for split, start, stop in zip(description.splits, [0, *stops], stops, strict=False):
        assert split.ctr == pytest.approx(labels[start:stop].mean())
    train = raw[: stops[0]]
    counts = {name: train[name].value_counts() for name in names}
    counts[ALL_TABLES] = pd.concat(counts[name] for name in names).sort_values(ascending=False)
    for table in description.tables:
        expected = counts[table.table].to_numpy()
        assert (table.distinct, table.accesses) == (len(expected), expected.sum())
        assert table.seen_once == (expected == 1).sum()
        tops = [expected[: -(-len(expected) * thousandths // 1000)].sum() for thousandths in (1, 10, 50, 100)]
        assert table.top_shares == pytest.approx(np.array(tops) / expected.sum())
        assert table.row_0_share == 0.0
    batches = [train[start : start + 256] for start in range(0, len(train) - 255, 256)]
    unique = np.mean([sum(batch[name].nunique() for name in names) for batch in batches])
    assert description.windows[0].mean_distinct == pytest.approx(unique)
    assert description.windows[0].unique_share == pytest.approx(unique / (256 * len(names)))
    test = raw[stops[1] :]
    unseen = np.mean([~test[name].isin(set(train[name])) for name in names])
    assert description.splits[2].unseen_share == description.splits[2].row_0_share == pytest.approx(unseen)


# Synthetic streams


def test_synthetic_stream_is_described_as_its_seed_draws_it(tmp_path):
    words = ("--synthetic", "avazu", "--rows", 1_500, "--batch-size", 512, "--seed", 1)
    description = described(*words, out=tmp_path)
    assert (description.dataset, description.kind) == ("avazu", "synthetic")
    assert [split.rows_read for split in description.splits] == [1_024] * 3
    stream = SyntheticWorkload.create("avazu", batch_size=512, seed=1)
    batches = [stream.batch(0), stream.batch(1)]
    assert description.splits[0].ctr == torch.cat([batch.labels for batch in batches]).double().mean().item()
    assert tuple((table.table, table.rows) for table in description.tables[1:]) == stream.tables
    for table in description.tables[1:]:
        ids = torch.cat([batch.features[table.table].values() for batch in batches])
        assert (table.accesses, table.distinct) == (1_024, len(ids.unique()))
    assert {table.row_0_share for table in description.tables} == {None}
