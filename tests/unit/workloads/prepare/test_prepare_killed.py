"""A preparation that is killed before or after any rename, or whose machine loses power: what was there is kept."""

import multiprocessing
import os
import shutil
import signal
import threading
from itertools import count, takewhile
from pathlib import Path

import pytest
from prepare_scenes import content, kaggle_file, random_rows

from workloads import DataError
from workloads.prepare.prepare import prepare
from workloads.prepare.workspace import step

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["workloads.prepare.prepare"])


@pytest.fixture
def sources(tmp_path):
    """An earlier input, the present one, and one without a good row."""
    good = (kaggle_file(tmp_path / str(seed), random_rows(50, seed=seed)) for seed in (1, 2))
    return (*good, kaggle_file(tmp_path / "bad", ["nothing\n"]))


def prepare_until_killed(source: Path, out: Path, moment: int) -> None:
    """Replace what is in `out`, and end before the rename of an even moment's half, or after that of an odd one's."""
    renames, rename = count(), Path.rename

    def or_killed(path, to):
        if path.name.startswith("vocabulary-"):  # there are many, and all alike
            return rename(path, to)
        number = next(renames)
        if number == moment // 2 and not moment % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        done = rename(path, to)
        if number == moment // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    Path.rename = or_killed
    os.fsync = lambda _: None  # the machine goes on
    prepare("criteo_kaggle", [source], out=out, overwrite=True)


def killed(source: Path, out: Path, moment: int) -> bool:
    """Whether the process was killed before it was done."""
    child = PROCESSES.Process(target=prepare_until_killed, args=(source, out, moment))
    child.start()
    try:
        child.join(60)
        assert child.exitcode in {0, -signal.SIGKILL}
        return child.exitcode != 0
    finally:
        child.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("restart", [False, True])
def test_killed_at_any_rename_the_only_copy_is_put_back_before_anything_is_deleted(
    tmp_path, sources, monkeypatch, restart
):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    old, new, bad = sources
    wanted = {}
    for name, source in (("old", old), ("new", new)):
        prepare("criteo_kaggle", [source], out=tmp_path / name)
        wanted[name] = content(tmp_path / name)
    seen, apart = set(), 0
    for moment in count():
        out = tmp_path / f"out{moment}"
        shutil.copytree(tmp_path / "old", out)
        ended = killed(new, out, moment)
        apart += not (out / "criteo_kaggle").exists()
        with pytest.raises(DataError, match="exists already: add --overwrite"):
            prepare("criteo_kaggle", [new], out=out, restart=restart)
        with pytest.raises(DataError):
            prepare("criteo_kaggle", [bad], out=out, overwrite=True, restart=restart)
        found = {f"criteo_kaggle/{name}": data for name, data in content(out / "criteo_kaggle").items()}
        seen.add(next(name for name, right in wanted.items() if found == right))
        prepare("criteo_kaggle", [new], out=out, overwrite=True, restart=restart)
        assert content(out) == wanted["new"]
        if not ended:
            break
    assert moment > 12
    assert apart == 2
    assert seen == {"old", "new"}


def test_all_is_on_the_drive_before_it_gets_the_name_that_says_so_and_then_the_name(tmp_path, sources, monkeypatch):
    synced, done = {}, []
    fsync, rename = os.fsync, Path.rename

    def state(found):
        return found.st_mtime_ns, found.st_size

    def noting(file):
        fsync(file)
        found = os.fstat(file)
        synced[found.st_ino] = state(found)
        done.append((threading.get_ident(), "synced", found.st_ino))

    def checked(path, to):
        if path.parent.suffix != ".unfinished" and to.suffix != ".gone":
            arrays = path.parent.glob("made-*/*_*.npy") if path.name.startswith("encoded-") else ()
            for each in (path, *path.rglob("*"), *arrays):
                assert synced.get(each.stat().st_ino) == state(each.stat()), f"{each} is not synced, renaming {path}"
            done.append((threading.get_ident(), to.name, {path.parent.stat().st_ino, to.parent.stat().st_ino}))
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        patch.setattr(Path, "rename", checked)
        for source in sources[:2]:
            prepare("criteo_kaggle", [source], out=tmp_path / "out", overwrite=True)
    renames = [at for at, (_, what, _) in enumerate(done) if what != "synced"]
    for at in renames:
        thread, _, folders = done[at]
        ours = [(what, which) for one, what, which in done[at + 1 :] if one == thread]
        assert {which for _, which in takewhile(lambda step: step[0] == "synced", ours)} >= folders
    starts = {done[at][1].split("-")[0] for at in renames}
    assert starts >= {"staged", "counted", "made", "encoded", "replaced", "criteo_kaggle"}


def test_two_tasks_of_one_step_do_not_write_into_each_other(tmp_path):
    """A cluster may still run that of a run that was interrupted."""
    folder, began, other = tmp_path / "staged", threading.Event(), threading.Event()

    def late(made):
        began.set()
        other.wait(10)
        (made / "data").write_text("whole")
        return {}

    def soon(made):
        (made / "data").write_text("whole")
        return {}

    first = threading.Thread(target=step, args=(folder, late))
    first.start()
    began.wait(10)
    step(folder, soon)
    other.set()
    first.join()
    assert (folder / "data").read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["staged"]
