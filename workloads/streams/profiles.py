"""The fitted access patterns of the three datasets, from profiles.json; results/streams/fit_profiles.py makes it."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.streams.draws import Floats, Singles, to_dense
from workloads.streams.zipf import RankLaw

PROFILES_FILE = Path(__file__).with_name("profiles.json")
_COIN_STEPS = 1 << 16
"""Steps in which a coin is read: the shares of missing values are exact to 1 in 65,536."""

Entry = dict[str, Any]
"""A part of that file.

By dataset: `groups`, the probabilities of their events; `tables` with the law, its `group`, and whether rank 0 is
forced `inside` the event; `dense` with mean and deviation of log(1 + value); and `dense_missing`: the shares of the
patterns, names of missing columns with a space between them, `inside` and `outside` the event of a `group`.
"""


@dataclass(frozen=True, kw_only=True)
class TableProfile:
    """Access pattern of one table.

    Attributes:
        law: Distribution of ranks where rank 0 is not forced.
        group: Index of the group of columns that go missing together; None where the table is in none.
        forced_from, forced_below: Range of the group's uniform number in which rank 0, the id that stands for a missing
            value, is forced.
    """

    law: RankLaw
    group: int | None
    forced_from: float
    forced_below: float

    @property
    def forced(self) -> float:
        """Share of samples with rank 0 forced."""
        return self.forced_below - self.forced_from


@dataclass(frozen=True, kw_only=True)
class DenseProfile:
    """Values of one dense column.

    Attributes:
        mean, std: Mean and deviation of log(1 + value).
        missing: Ranges of a group's uniform number in which the value is missing, each from its start to below its end.
    """

    mean: float
    std: float
    missing: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class DatasetProfile:
    """Access pattern of a dataset.

    Attributes:
        groups: Probability of each group's event, drawn once per sample for all its tables.
        tables: Profiles by table, in the order of the schema.
        dense: Profiles by dense column.
        dense_group: Index of the group whose number also says which dense columns are missing.
    """

    groups: tuple[float, ...]
    tables: dict[str, TableProfile]
    dense: dict[str, DenseProfile]
    dense_group: int


def load_profile(dataset: str, *, rows: dict[str, int]) -> DatasetProfile:
    """The profile of a dataset at given table sizes, rows by table in the order of the schema.

    Raises:
        KeyError: profiles.json lacks the dataset or one of the tables.
    """
    entry: Entry = json.loads(PROFILES_FILE.read_text(encoding="utf-8"))[dataset]
    tables: dict[str, TableProfile] = {}
    for name, count in rows.items():
        fitted = entry["tables"][name]
        group = fitted["group"]
        share = 0.0 if group is None else entry["groups"][group]
        law = RankLaw(
            rows=fitted["rows"], head=tuple(fitted["head"]), exponent=fitted["exponent"], shift=fitted["shift"]
        )
        tables[name] = TableProfile(
            law=law.resized(count),
            group=group,
            forced_from=0.0 if fitted["inside"] else share,
            forced_below=share if fitted["inside"] else 1.0,
        )
    group = entry["dense_missing"]["group"]
    spans = _pattern_spans(entry["dense_missing"], share=entry["groups"][group])
    dense = {
        name: DenseProfile(
            mean=column["mean"],
            std=column["std"],
            missing=tuple(span for pattern, span in spans if name in pattern),
        )
        for name, column in entry["dense"].items()
    }
    return DatasetProfile(groups=tuple(entry["groups"]), tables=tables, dense=dense, dense_group=group)


def _pattern_spans(entry: Entry, *, share: float) -> list[tuple[list[str], tuple[float, float]]]:
    """Every pattern with its range of the group's number: those inside the event below its share, the others above."""
    spans: list[tuple[list[str], tuple[float, float]]] = []
    for shares, start, stop in ((entry["inside"], 0.0, share), (entry["outside"], share, 1.0)):
        edges = [start + (stop - start) * below for below in itertools.accumulate(shares.values(), initial=0.0)]
        spans += zip((pattern.split() for pattern in shares), itertools.pairwise(edges), strict=True)
    return spans


class DenseSampler:
    """Draws values of log(1 + count), about normal and cut at 0; a missing value is 0.

    All columns share one random number per sample, the coin, so that they are missing together as in real rows.

    Args:
        columns: Mean, deviation and missing ranges by column, 32 columns at most.
    """

    def __init__(self, columns: Sequence[DenseProfile]) -> None:
        # The sum of four even numbers is close to a normal one (Irwin and Hall), and exact on any machine.
        spread = 65536.0 * np.sqrt(1.0 / 3.0)
        self._scale = np.asarray([column.std / spread for column in columns], dtype=np.float32)
        self._mean = np.asarray([column.mean for column in columns], dtype=np.float32)
        self._missing = np.zeros(_COIN_STEPS, dtype=np.uint32)
        for number, column in enumerate(columns):
            for start, stop in column.missing:
                self._missing[round(start * _COIN_STEPS) : round(stop * _COIN_STEPS)] |= np.uint32(1 << number)

    def draw(self, generator: np.random.Philox, coins: Floats) -> Singles:
        """Features of one sample per coin, fp32 `[columns, n]`.

        Args:
            generator: Gives the words of the values.
            coins: Say what is missing, in [0, 1), float64 `[n]`: numbers of the group `DatasetProfile.dense_group`.
        """
        columns, size = self._mean.size, coins.size
        words = generator.random_raw(columns * size).view(np.uint16).reshape(4, columns, size)
        features = np.empty((columns, size), np.float32)
        to_dense(words, coins, self._missing, self._scale, self._mean, features)
        return features
