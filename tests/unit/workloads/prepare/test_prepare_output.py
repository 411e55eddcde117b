"""What is written where: the same bytes each time, and nothing lost that was there before."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from prepare_scenes import content, kaggle_file, kaggle_row, random_rows

import workloads.manifest
import workloads.prepare.encoding
import workloads.prepare.prepare
import workloads.prepare.staging
from workloads import DataError
from workloads.manifest import IdRule, Settings
from workloads.prepare.prepare import prepare
from workloads.prepare.workspace import MemoryBudget
from workloads.prepared import find_prepared


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two raw files, `1` and `2`, and what is prepared from each, `made1` and `made2`."""
    folder = tmp_path_factory.mktemp("made")
    for seed in (1, 2):
        source = kaggle_file(folder / str(seed), random_rows(50, seed=seed))
        prepare("criteo_kaggle", [source], out=folder / f"made{seed}")
    return folder


def test_existing_output_is_refused_without_overwrite_and_replaced_with_it(tmp_path, made):
    shutil.copytree(made / "made1", tmp_path / "out")
    other, before = made / "2", content(tmp_path / "out")
    with pytest.raises(DataError, match="exists already: add --overwrite"):
        prepare("criteo_kaggle", [other], out=tmp_path / "out")
    assert content(tmp_path / "out") == before
    prepare("criteo_kaggle", [other], out=tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == content(made / "made2") != before
    assert str(made) not in (tmp_path / "out/criteo_kaggle/manifest.json").read_text()


def test_overwrite_never_deletes_files_that_prepare_did_not_make(tmp_path):
    folder = tmp_path / "criteo_kaggle"
    folder.mkdir()
    source = kaggle_file(folder / "train.txt", random_rows(20))
    with pytest.raises(DataError, match=r"did not make \(train\.txt\): choose another --out"):
        prepare("criteo_kaggle", [source], out=tmp_path, overwrite=True)
    assert source.exists()


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_args, **_kwargs):
    raise KeyboardInterrupt


RENAME = Path.rename


def all_but_the_last_rename(path, to):
    return full_disk() if path.name.startswith("made-") and path.suffix != ".unfinished" else RENAME(path, to)


@pytest.mark.parametrize(
    ("owner", "name", "failure", "error", "message"),
    [
        (workloads.prepare.staging, "_write_block", full_disk, DataError, "no space left .* is intact"),
        (workloads.prepare.encoding, "write_rows", full_disk, DataError, "is intact; run again to go on"),
        (workloads.manifest.Manifest, "write", full_disk, DataError, "is intact; run again to go on"),
        (Path, "rename", all_but_the_last_rename, DataError, "is intact; run again to go on"),
        (workloads.prepare.staging, "_write_block", interrupt, KeyboardInterrupt, ""),
    ],
    ids=["disk full while reading", "while writing", "at the manifest", "at the last rename", "Ctrl-C"],
)
def test_failure_leaves_the_previous_output_intact_and_the_next_run_goes_on(
    tmp_path, monkeypatch, made, owner, name, failure, error, message
):
    shutil.copytree(made / "made1", tmp_path / "out")
    other, before = made / "2", content(tmp_path / "out")
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, failure)
        with pytest.raises(error, match=message):
            prepare("criteo_kaggle", [other], out=tmp_path / "out", overwrite=True)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"criteo_kaggle"} | (set() if name == "_write_block" else {".criteo_kaggle.partial-work"})
    assert content(tmp_path / "out" / "criteo_kaggle") == {Path(k).name: v for k, v in before.items()}
    prepare("criteo_kaggle", [other], out=tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == content(made / "made2")


def test_rows_of_one_last_file_are_not_left_where_another_was_written_before_and_after(tmp_path, monkeypatch):
    """Files without training rows are in no vocabulary: runs with one or the other differ in nothing else."""
    first, one, other = (kaggle_file(tmp_path / str(seed), random_rows(20, seed=seed)) for seed in (1, 2, 3))
    for last in (one, other):
        with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
            broken.setattr(workloads.manifest.Manifest, "write", interrupt)
            prepare("criteo_1tb", [first, last], out=tmp_path / "resumed")
    for out in ("resumed", "whole"):
        prepare("criteo_1tb", [first, one], out=tmp_path / out)
    assert content(tmp_path / "resumed") == content(tmp_path / "whole")


def test_run_that_was_killed_while_it_removed_its_work_is_no_trouble_to_the_next(tmp_path, monkeypatch):
    source = kaggle_file(tmp_path / "t", random_rows(50))
    remove = shutil.rmtree

    def killed(folder, **options):
        steps = [mark.parent for mark in Path(folder).glob("*/done.json")]
        for file in (file for step in steps for file in step.iterdir() if file.name != "done.json"):
            remove(file) if file.is_dir() else file.unlink()
        if steps:
            raise KeyboardInterrupt
        remove(folder, **options)

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare("criteo_kaggle", [source], out=tmp_path / "out")
    before = content(tmp_path / "out" / "criteo_kaggle")
    (tmp_path / "out" / ".criteo_kaggle.partial-work" / "replaced").mkdir(parents=True)
    (tmp_path / "out" / ".criteo_kaggle.partial-work" / "replaced" / "manifest.json").touch()
    prepare("criteo_kaggle", [source], out=tmp_path / "out", overwrite=True)
    assert content(tmp_path / "out") == {f"criteo_kaggle/{name}": data for name, data in before.items()}


def test_output_that_another_has_made_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    source, target = kaggle_file(tmp_path / "t", random_rows(50)), tmp_path / "out" / "criteo_kaggle"
    run = workloads.prepare.prepare._Build.run
    monkeypatch.setattr(workloads.prepare.prepare._Build, "run", lambda build: (run(build), target.mkdir())[0])
    with pytest.raises(DataError, match="exists already: add --overwrite"):
        prepare("criteo_kaggle", [source], out=tmp_path / "out")
    assert list(target.iterdir()) == []


def test_memory_is_a_number_with_a_unit():
    sizes = {"8GB": 8 * 10**9, "512MiB": 512 << 20, "1.5 gb": 1.5 * 10**9}
    assert {text: MemoryBudget.parse(text).bytes for text in sizes} == sizes
    for text in ("1,5GB", "8 GB/2", "600000000,5", "much", "", "-1GB"):
        with pytest.raises(DataError, match="is not a size: write it like 8GB"):
            MemoryBudget.parse(text)


def test_input_that_may_not_be_looked_at_is_an_error_in_a_sentence(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    source = kaggle_file(tmp_path / "t", random_rows(20))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "is_dir", refuse)
        with pytest.raises(DataError, match=r"cannot read or write \S+/t: Permission denied$"):
            prepare("criteo_kaggle", [source], out=tmp_path)
    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(DataError, match=r"manifest.json cannot be looked at \(Permission denied\)"):
        find_prepared(tmp_path)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "is empty"),
        ("x\n", {"skip_bad_rows": 1}, "holds no good row"),
        (kaggle_row(), {}, "1 rows leave no row for train and test"),
        (kaggle_row(), {"table_rows": 9}, "--table-rows bounds tables .*: add --ids hashed"),
        (kaggle_row(), {"ids": IdRule.HASHED, "min_count": 2}, "leave it out with --ids hashed"),
    ],
)
def test_unusable_request_is_an_error_in_a_sentence(tmp_path, text, settings, message):
    source = kaggle_file(tmp_path / "t", [text])
    with pytest.raises(DataError, match=message):
        prepare("criteo_kaggle", [source], out=tmp_path / "out", settings=Settings(**settings))


def test_missing_file_and_directory_are_reported_before_anything_is_read(tmp_path):
    good = kaggle_file(tmp_path / "t", ["junk"])
    with pytest.raises(DataError, match="absent: no such file"):
        prepare("criteo_kaggle", [good, tmp_path / "absent"], out=tmp_path / "out")
    with pytest.raises(DataError, match="is a directory: name the files in it"):
        prepare("criteo_kaggle", [good, tmp_path], out=tmp_path / "out")
    with pytest.raises(DataError, match="no input files"):
        prepare("criteo_kaggle", [], out=tmp_path / "out")


def test_output_below_a_file_is_an_error_in_a_sentence(tmp_path):
    source = kaggle_file(tmp_path / "t", random_rows(20))
    with pytest.raises(DataError, match="cannot read or write"):
        prepare("criteo_kaggle", [source], out=source)
