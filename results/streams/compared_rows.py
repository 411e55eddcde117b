"""Rows of the real samples, and as many synthetic ones: what is compared and measured here.

The samples lie in the folder that EMBEDDING_OFFLOAD_DATA names (default: ../shared/data).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from workloads.batch import Split
from workloads.schema import SCHEMAS
from workloads.streams.profiles import DenseSampler
from workloads.streams.synthetic import STREAMS, SyntheticWorkload

Codes = dict[str, npt.NDArray[np.int64]]
Mask = npt.NDArray[np.bool_]

FOLDER = Path(os.environ.get("EMBEDDING_OFFLOAD_DATA") or Path(__file__).parents[3] / "shared" / "data")
LONG = {
    "criteo_kaggle": "criteo_kaggle_sample.tsv.gz",
    "avazu": "avazu_sample.csv.gz",
    "criteo_1tb": "criteo_1tb_sample.tsv.gz",
}
SHORT = {"avazu": "avazu_sample_head.csv.gz", "criteo_1tb": "criteo_1tb_day0_head.tsv.gz"}
CTR_ROWS = 1 << 18
AVAZU_MARKERS = {
    "site_id": "85f751fd", "site_domain": "c4e18dd6", "site_category": "50e219e0", "app_id": "ecad2386",
    "app_domain": "7801e8d9", "app_category": "07d7df22",
}  # fmt: skip
AVAZU_MISSING_INTEGER = "-1"  # of C20; no other integer column has it
_FAR = 1000.0


@dataclass(frozen=True)
class Rows:
    """Some rows of a dataset.

    Attributes:
        ids: By table, int64 `[rows]`; a missing value is an id like any other.
        missing: By table, the id that stands for a missing value; only where there is one and it is known.
        gaps: By dense column, where its value is missing, bool `[rows]`.
    """

    ids: Codes
    missing: dict[str, int]
    gaps: Mapping[str, Mask]

    @property
    def count(self) -> int:
        return len(next(iter(self.ids.values())))

    def part(self, start: int, stop: int) -> "Rows":
        ids = {name: column[start:stop] for name, column in self.ids.items()}
        return Rows(ids, self.missing, {name: gaps[start:stop] for name, gaps in self.gaps.items()})


def read_rows(dataset: str, path: Path) -> Rows:
    """The categorical columns of a sample, ids numbered by first appearance, and the gaps of the dense ones."""
    schema = SCHEMAS[dataset]
    names = [name for name, _ in schema.categorical]
    layout = {} if dataset == "avazu" else {"sep": "\t", "header": None, "names": ["label", *schema.dense, *names]}
    frame = pd.read_csv(path, dtype=str, usecols=[*schema.dense, *names], **layout).fillna("")
    markers = AVAZU_MARKERS if dataset == "avazu" else dict.fromkeys(names, "")
    ids: Codes = {}
    missing: dict[str, int] = {}
    for name in names:
        codes, values = pd.factorize(frame[name])
        ids[name] = codes
        if markers.get(name) in set(values):
            missing[name] = list(values).index(markers[name])
    marker = AVAZU_MISSING_INTEGER if dataset == "avazu" else ""
    return Rows(ids, missing, {name: (frame[name] == marker).to_numpy() for name in schema.dense})


def sample_click_rate(dataset: str, path: Path) -> tuple[float, float]:
    """Share of clicks in a sample, and its standard deviation if the rows were independent."""
    layout = {"usecols": ["click"]} if dataset == "avazu" else {"sep": "\t", "header": None, "usecols": [0]}
    clicks = pd.read_csv(path, **layout).iloc[:, 0]
    rate = float(clicks.mean())
    return rate, math.sqrt(rate * (1.0 - rate) / len(clicks))


def draw_rows(dataset: str, *, rows: int, seed: int) -> Rows:
    """So many synthetic rows at the published table sizes."""
    workload = SyntheticWorkload.create(dataset, batch_size=rows, seed=seed)
    ids = workload.batch(0).features.values().view(len(workload.tables), rows).numpy()
    # A missing dense value and one cut at 0 look alike. Far above 0 nothing is cut, and what is missing is still 0.
    columns = workload.profile.dense
    workload._dense = DenseSampler([replace(column, mean=_FAR) for column in columns.values()])
    gaps = workload.draw(STREAMS[Split.TRAIN], 0, rows).dense == 0
    tables = [name for name, _ in workload.tables]
    rank_0 = [int(workload._scrambler.table_ids(number, np.zeros(1, np.int64))[0]) for number in range(len(tables))]
    return Rows(
        dict(zip(tables, ids, strict=True)),
        dict(zip(tables, rank_0, strict=True)),
        dict(zip(columns, gaps, strict=True)),
    )


def click_rate(dataset: str, *, seed: int) -> float:
    """Share of clicks in 2**18 synthetic rows; its standard deviation is 0.0009 at most."""
    workload = SyntheticWorkload.create(dataset, batch_size=1 << 14, seed=seed)
    batches = range(CTR_ROWS // workload.batch_size)
    return float(np.mean([workload.batch(index).labels.mean() for index in batches]))


def counts(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rows per id, most frequent first."""
    return np.sort(np.unique(ids, return_counts=True)[1])[::-1]
