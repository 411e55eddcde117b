import zlib
from itertools import cycle

import pytest

from workloads import DataError
from workloads.batch import Split
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.tracks import TRACKS


def create(name, *, batch_size=64, seed=3, max_rows=50_000):
    return SyntheticWorkload.create(name, batch_size=batch_size, seed=seed, max_rows=max_rows)


def fingerprint(workload, index, split=Split.TRAIN):
    batch = workload.batch(index, split)
    return [zlib.crc32(part.numpy().tobytes()) for part in (batch.features.values(), batch.dense, batch.labels)]


@pytest.mark.parametrize(("dataset", "track"), zip(SCHEMAS, cycle(TRACKS), strict=False))
def test_any_dataset_runs_on_any_track_under_its_full_name(dataset, track):
    workload = create(f"{dataset}@{track}")
    assert workload.name == f"{dataset}@{track}"
    shrunk = workload.shrunk(max_table_rows=100, batch_size=16)
    assert shrunk.name == workload.name
    for one in (workload, shrunk):
        batch = one.batch(5, Split.TEST)
        for (_, rows), key in zip(one.tables, batch.features.keys(), strict=True):
            ids = batch.features[key].values()
            assert ids.numel() == 0 or 0 <= int(ids.min()) <= int(ids.max()) < rows


@pytest.mark.parametrize("track", ["fashion", "", "drift(lifetime=1)"])
def test_unknown_track_is_refused_with_those_that_there_are(track):
    with pytest.raises(DataError, match=r"unknown track '.*': choose one of drift, growth, or leave out the @"):
        create(f"criteo_kaggle@{track}")


@pytest.mark.parametrize("track", TRACKS)
def test_track_changes_the_ids_of_the_stream_and_the_seed_changes_the_track(track):
    plain, tracked = create("criteo_kaggle"), create(f"criteo_kaggle@{track}")
    other = create(f"criteo_kaggle@{track}", seed=4)
    middle = plain.batches(Split.TRAIN) // 2
    assert len({fingerprint(one, middle)[0] for one in (plain, tracked, other)}) == 3
    assert fingerprint(plain, middle)[1] == fingerprint(tracked, middle)[1], "dense features know no track"
