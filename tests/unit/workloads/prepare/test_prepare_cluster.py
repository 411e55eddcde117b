import sys
from pathlib import Path

import pytest
from prepare_scenes import content, kaggle_file, random_rows

from workloads import DataError
from workloads.manifest import Settings
from workloads.prepare.prepare import prepare
from workloads.prepare.workspace import MemoryBudget


@pytest.fixture
def days(tmp_path):
    return [kaggle_file(tmp_path / f"day_{day}", random_rows(60, seed=day)) for day in range(3)]


@pytest.fixture(scope="module")
def cluster():
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as running:
        yield running


@pytest.mark.slow
def test_two_workers_make_the_same_bytes_as_one_process(tmp_path, days, cluster):
    memory = MemoryBudget(512 << 20)
    prepare("criteo_1tb", days, out=tmp_path / "here", memory=memory)
    reports, asked = [], {"memory": memory, "scheduler": cluster.scheduler_address}
    prepare("criteo_1tb", days, out=tmp_path / "there", progress=lambda *report: reports.append(report), **asked)
    assert content(tmp_path / "there") == content(tmp_path / "here")
    ends = {step: (done, total) for step, done, total in reports}
    assert list(ends) == ["reading", "counting", "ranking", "writing", "checksums"]
    assert all(done == total > 0 for done, total in ends.values())


@pytest.mark.slow
def test_errors_of_workers_reach_the_user_as_they_are(tmp_path, days, cluster):
    days[1].write_text(days[1].read_text() + "junk\n")
    days[2].write_text("junk\n" + days[2].read_text())
    scheduler, settings = cluster.scheduler_address, Settings(skip_bad_rows=1)
    with pytest.raises(DataError, match=r"day_1:61: 1 columns found.*Mend the row"):
        prepare("criteo_1tb", days, out=tmp_path, scheduler=scheduler)
    with pytest.raises(DataError, match=r"day_2:1: 1 columns found.*\(bad row 2; --skip-bad-rows allows 1\)"):
        prepare("criteo_1tb", days, out=tmp_path, scheduler=scheduler, settings=settings)


def test_no_scheduler_or_no_dask_is_an_error_with_the_remedy(tmp_path, days, monkeypatch):
    monkeypatch.setattr("workloads.prepare.cluster.CONNECT_S", 0.3)
    with pytest.raises(DataError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9 .*leave out --scheduler"):
        prepare("criteo_1tb", days, out=tmp_path / "out", scheduler="tcp://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(DataError, match="--scheduler needs Dask: pip install dask distributed"):
        prepare("criteo_1tb", days, out=tmp_path / "out", scheduler="tcp://127.0.0.1:9")
    assert not Path(tmp_path / "out").exists()


@pytest.mark.slow
def test_a_scheduler_without_workers_is_refused_before_anything_waits_for_it(tmp_path, days):
    from distributed import LocalCluster

    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None) as empty,
        pytest.raises(DataError, match="has no workers: start some with dask worker"),
    ):
        prepare("criteo_1tb", days, out=tmp_path / "out", scheduler=empty.scheduler_address)
    assert not (tmp_path / "out").exists()
