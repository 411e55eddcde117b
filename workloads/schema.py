"""The three click-log datasets as published, and a multi-hot one made from them: columns, table sizes, splits.

Sources of every figure: hpcaitech/CachedEmbedding `recsys/datasets/{criteo,avazu}.py` @a2af3d7e (table sizes, splits),
facebookresearch/dlrm `torchrec_dlrm/README.MD` @090956ee and Oneflow-Inc/models `split_day_23.sh` (Criteo 1TB rows),
openbenchmark/BARS LR/FM logs (positives of Criteo Kaggle and Avazu), mlcommons/training
`recommendation_v2/torchrec_dlrm/README.MD` @3e2f7317 (table sizes and bags of MLPerf's DLRM v2).
"""

import enum
from dataclasses import dataclass, replace


class Split(enum.StrEnum):
    """Parts of a dataset, in time order."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


def prefix_of(count: int, share: float) -> int:
    """The first `share` of `count` rows, or batches, as a number: rounded, at least 1.

    Raises:
        ValueError: the share is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"prefix is {share}: give a share of the training split, above 0 to 1")
    return min(count, max(1, round(share * count)))


_CRITEO_CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
_CRITEO_INTEGER = tuple(f"I{i}" for i in range(1, 14))

_KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
_TERABYTE_ROWS = (
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10,
    2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)  # fmt: skip
_MLPERF_ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10,
    2209, 11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
_AVAZU_TABLES = (
    ("C1", 7), ("banner_pos", 7), ("site_id", 4737), ("site_domain", 7745), ("site_category", 26), ("app_id", 8552),
    ("app_domain", 559), ("app_category", 36), ("device_id", 2686408), ("device_ip", 6729486), ("device_model", 8251),
    ("device_type", 5), ("device_conn_type", 4),
)  # fmt: skip
MLPERF_HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids per bag of the 26 columns of Criteo 1TB in MLPerf's DLRM v2.

Source: mlcommons/training `recommendation_v2/torchrec_dlrm/README.MD` @3e2f7317, `--multi_hot_sizes`.
"""


@dataclass(frozen=True, kw_only=True)
class DatasetSchema:
    """A dataset as published.

    Attributes:
        name: The workload's name on the command line.
        title: The name in tables.
        categorical: Embedded columns with their full table sizes in rows, in order.
        dense: Dense columns, in order.
        train_rows, validation_rows, test_rows: Rows of the published splits, in time order.
        ctr: Share of positive labels. Criteo 1TB's is that of the 80,000-row sample: none is published.
        hotness: Ids of every bag, by column; None: one per column.
        like: Name of the dataset whose measured access patterns the stream follows; None: its own.
    """

    name: str
    title: str
    categorical: tuple[tuple[str, int], ...]
    dense: tuple[str, ...]
    train_rows: int
    validation_rows: int
    test_rows: int
    ctr: float
    hotness: tuple[int, ...] | None = None
    like: str | None = None

    @property
    def profile(self) -> str:
        """Name of the dataset whose measured access patterns the stream follows."""
        return self.like or self.name

    @property
    def splits(self) -> dict[Split, int]:
        """Rows by split, in time order."""
        return {Split.TRAIN: self.train_rows, Split.VALIDATION: self.validation_rows, Split.TEST: self.test_rows}

    @property
    def table_rows(self) -> int:
        """Embedding rows of all tables."""
        return sum(rows for _, rows in self.categorical)

    @property
    def bag_lengths(self) -> tuple[int, ...]:
        """Ids per bag, by column."""
        return self.hotness or (1,) * len(self.categorical)

    @property
    def mean_hotness(self) -> float:
        """Mean ids per bag, over all columns."""
        return sum(self.bag_lengths) / len(self.categorical)


CRITEO_KAGGLE = DatasetSchema(
    name="criteo_kaggle",
    title="Criteo Kaggle",
    categorical=tuple(zip(_CRITEO_CATEGORICAL, _KAGGLE_ROWS, strict=True)),
    dense=_CRITEO_INTEGER,
    train_rows=39_291_954,
    validation_rows=3_274_332,
    test_rows=3_274_331,
    ctr=0.2562,
)
AVAZU = DatasetSchema(
    name="avazu",
    title="Avazu",
    categorical=_AVAZU_TABLES,
    dense=("C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
    train_rows=36_386_071,
    validation_rows=2_021_448,
    test_rows=2_021_448,
    ctr=0.1698,
)
CRITEO_1TB = DatasetSchema(
    name="criteo_1tb",
    title="Criteo 1TB",
    categorical=tuple(zip(_CRITEO_CATEGORICAL, _TERABYTE_ROWS, strict=True)),
    dense=_CRITEO_INTEGER,
    train_rows=4_195_197_692,
    validation_rows=89_137_319,
    test_rows=89_137_318,
    ctr=0.0322,
)

MLPERF_DLRM_V2 = replace(
    CRITEO_1TB,
    name="mlperf_dlrm_v2",
    title="MLPerf DLRM v2",
    categorical=tuple(zip(_CRITEO_CATEGORICAL, _MLPERF_ROWS, strict=True)),
    hotness=MLPERF_HOTNESS,
    like=CRITEO_1TB.name,
)
"""Criteo 1TB with tables of at most 40 million rows and a fixed number of ids per column.

The laws are those measured on Criteo 1TB: equal heads, exponents and shifts, and the tail's mass spread over the rows
of this table size. The first id of a bag is what Criteo 1TB's own draw would be, the others are drawn from the table's
law, each on its own. MLPerf (facebookresearch/dlrm `torchrec_dlrm/multi_hot.py` @0422268b) draws the others once for
every row, uniformly over the table, and repeats them whenever that row is first: there a bag touches more rare rows.
"""
DATASETS = {schema.name: schema for schema in (CRITEO_KAGGLE, AVAZU, CRITEO_1TB)}
"""The datasets that exist as files."""
SCHEMAS = DATASETS | {MLPERF_DLRM_V2.name: MLPERF_DLRM_V2}
"""Everything that a stream can be made of."""
