"""A stream of bags of every length, empty ones too: Criteo Kaggle with lists in the place of its large columns."""

from dataclasses import replace

from workloads.schema import CRITEO_KAGGLE, BagLaw, DatasetSchema
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.track import Track


def bagged_schema() -> DatasetSchema:
    """A missing value is an empty bag; columns of at least 1,000 rows have 1 to 64 ids, up to 16 in the mean."""
    mean = tuple(16 if rows >= 1000 else 1 for _, rows in CRITEO_KAGGLE.categorical)
    return replace(CRITEO_KAGGLE, bags=BagLaw.geometric(mean, times=4))


def bagged(*, batch_size: int, seed: int, max_rows: int, track: Track | None = None) -> SyntheticWorkload:
    sizes = dict(SyntheticWorkload.create("criteo_kaggle", batch_size=1, seed=0, max_rows=max_rows).tables)
    return SyntheticWorkload(schema=bagged_schema(), rows=sizes, batch_size=batch_size, seed=seed, track=track)
