import zlib
from itertools import cycle

import pytest

from workloads import DataError
from workloads.batch import Split
from workloads.schema import SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.tracks import TRACKS, Drift, Growth, label, split_name


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


@pytest.mark.parametrize(
    ("text", "track"),
    [
        ("drift[lifetime=0.5]", Drift(lifetime=0.5)),
        ("drift[ lifetime=0.25 , takers=4 ]", Drift(lifetime=0.25, takers=4)),
        ("growth[]", Growth()),
    ],
)
def test_parameters_are_read_and_told_again_where_they_are_not_the_default(text, track):
    assert split_name(f"avazu@{text}") == ("avazu", track)
    assert split_name(f"avazu@{label(track)}") == ("avazu", track)
    assert label(Drift()) == "drift"
    assert label(Drift(lifetime=0.5)) == "drift[lifetime=0.5]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fashion", "'fashion'.*drift, growth"),
        ("", "unknown track ''"),
        ("drift(lifetime=1)", "unknown track"),
        ("drift[speed=1]", "no parameter 'speed': it has lifetime, takers"),
        ("drift[lifetime]", "lifetime of @drift is ''.*a number"),
        ("drift[takers=2.5]", "takers of @drift is '2.5': give a whole number"),
        ("drift[lifetime=nan]", "lifetime of @drift is nan: give 0.001 to 1000"),
        ("drift[lifetime=1,lifetime=2]", "lifetime twice"),
        ("growth[start=0]", "start of @growth is 0.0: give 0.25 to 1"),
    ],
)
def test_impossible_track_is_refused_with_the_remedy(text, message):
    with pytest.raises(DataError, match=message):
        create(f"criteo_kaggle@{text}")


@pytest.mark.parametrize("track", TRACKS)
def test_track_changes_the_ids_of_the_stream_and_the_seed_changes_the_track(track):
    plain, tracked = create("criteo_kaggle"), create(f"criteo_kaggle@{track}")
    other = create(f"criteo_kaggle@{track}", seed=4)
    middle = plain.batches(Split.TRAIN) // 2
    assert len({fingerprint(one, middle)[0] for one in (plain, tracked, other)}) == 3
    assert fingerprint(plain, middle)[1] == fingerprint(tracked, middle)[1], "dense features know no track"
