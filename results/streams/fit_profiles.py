"""Fits a rank law to every table and writes workloads/streams/profiles.json: run as a script.

    python results/streams/fit_profiles.py

Input are the figures in statistics.json beside this program, measured on samples of real rows (a source per dataset).
Missing values are left out of them for Criteo; in Avazu a grouped column's most frequent id is its missing marker and
is part of them. `groups` are columns that are missing together `inside`, or `outside`, an event of a probability
`share`. Of a table the shares are of the rows in which it is not missing: of the most frequent 1 % of the ids seen, of
the most frequent id, of the ten most frequent, and, from the sample's leading rows, of each from the second to the
tenth. `growth` is the number of distinct ids to expect in so many of those leading rows, chosen at random.
`dense_missing` are rows by the names of the dense columns missing in them, where the event of the group on which they
depend most happens and where it does not. (`sample_statistics.py` measures the last two.)

The ten most frequent ids get their measured shares. Of the tail, the exponent is solved for every shift tried, so that
as many draws as the sample has rows give about the measured number of distinct ids at the published table size. Among
these laws the one is taken whose number of distinct ids follows the sample's at every smaller number of rows as well:
that curve tells how flat the tail begins, how it ends, and how many distinct ids a batch has.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from suite.records.store import write_json
from workloads.schema import SCHEMAS, DatasetSchema
from workloads.streams.profiles import PROFILES_FILE, Entry
from workloads.streams.zipf import RankLaw

STATISTICS_FILE = Path(__file__).with_name("statistics.json")

_HEAD = 10
_STEEPEST = 6.0
_EXACT_RANKS = 1 << 12
_BINS_PER_OCTAVE = 64
_SHIFTS = np.concatenate([[0.0], np.geomspace(1.0, 1e4, 33)])
_DISTINCT_FACTORS = (0.94, 0.97, 1.0, 1.03, 1.06)
"""Factors on the number of distinct ids of the whole sample that are tried, because the parts may then fit better."""
_SHARE_WEIGHT = 0.5


def fit_dataset(schema: DatasetSchema, measured: Entry) -> Entry:
    """Fit every table of a dataset."""
    places = {
        table: (number, inside)
        for number, group in enumerate(measured["groups"])
        for inside, tables in ((True, group["inside"]), (False, group["outside"]))
        for table in tables
    }
    entries: dict[str, Entry] = {}
    for name, rows in schema.categorical:
        group, inside = places.get(name, (None, True))
        forced = 0.0
        if group is not None:
            share = measured["groups"][group]["share"]
            forced = share if inside else 1.0 - share
        law = fit_table(
            measured["tables"][name],
            rows=rows,
            draws=measured["rows"],
            forced=forced,
            forced_is_counted=measured["groups_are_defaults"],
        )
        entries[name] = {
            "rows": rows,
            "head": [round(share, 9) for share in law.head],
            "exponent": round(law.exponent, 5),
            "shift": round(law.shift, 3),
            "group": group,
            "inside": inside,
        }
    groups = [group["share"] for group in measured["groups"]]
    return {
        "source": measured["source"],
        "groups": groups,
        "tables": entries,
        "dense": measured["dense"],
        "dense_missing": fit_missing(measured),
    }


def fit_missing(measured: Entry) -> Entry:
    """Shares of the patterns in which dense columns are missing."""
    patterns = measured["dense_missing"]
    return {
        "group": [group["name"] for group in measured["groups"]].index(patterns["group"]),
        "inside": _shares(patterns["inside"]),
        "outside": _shares(patterns["outside"]),
    }


def _shares(rows: dict[str, int]) -> dict[str, float]:
    return {pattern: round(count / sum(rows.values()), 9) for pattern, count in rows.items()}


def fit_table(measured: Entry, *, rows: int, draws: int, forced: float, forced_is_counted: bool) -> RankLaw:
    """Fit the law of the ranks that are drawn where rank 0 is not forced.

    Args:
        measured: Figures of the column.
        rows: Rows of the table, the one for missing values included.
        draws: Rows of the sample.
        forced: Share of rows with rank 0 forced.
        forced_is_counted: Whether the figures count the forced rows (their id is then the most frequent one).
    """
    own_row = forced > 0 and not forced_is_counted
    explicit = min(_HEAD, rows - own_row)
    counted = forced if forced_is_counted else 0.0
    first = measured["top1"]
    # Rows that the sample never shows exist all the same: half a draw is left to each such place, and to the tail.
    floor = 0.5 / draws
    others = 1.0 - first if rows - own_row <= _HEAD else min(measured["top10"] - first, 1.0 - first - floor)
    weights = np.full(explicit - 1, floor)
    weights[: len(measured["next9"])] = np.maximum(measured["next9"], floor)[: explicit - 1]
    head = np.array([first - counted, *(weights / weights.sum() * others)]) / (1.0 - counted)
    head = np.concatenate([[0.0] * own_row, np.maximum(head, 0.0)])
    law = RankLaw(rows=rows, head=tuple(head.tolist()), exponent=1.0, shift=0.0)
    if law.tail_mass == 0:
        return law
    present = draws * (1.0 - forced)
    marker = 1 if counted else 0
    distinct = measured["distinct"] - marker
    growth = {int(taken): ids - marker for taken, ids in measured["growth"].items()} | {draws: distinct}
    first_percent = max(1, measured["distinct"] // 100) + own_row
    share = (measured["top1_percent"] - counted) / (1.0 - counted)

    def misfit(law: RankLaw) -> float:
        off = [expected_distinct(law, taken * (1.0 - forced)) / max(ids, 1.0) - 1.0 for taken, ids in growth.items()]
        off_share = abs(float(law.probabilities(0, first_percent).sum()) - share)
        return float(np.sqrt(np.mean(np.square(off)))) + _SHARE_WEIGHT * off_share

    laws = (
        _solve_exponent(replace(law, shift=float(shift)), draws=present, distinct=distinct * factor)
        for shift in _SHIFTS
        for factor in _DISTINCT_FACTORS
    )
    return min(laws, key=misfit)


def expected_distinct(law: RankLaw, draws: float) -> float:
    """Expected number of different ranks in independent draws; ranks far behind count in bins of nearly equal ones."""
    edges = np.arange(min(law.rows, _EXACT_RANKS) + 1, dtype=np.float64)
    if law.rows > _EXACT_RANKS:
        bins = int(np.ceil(np.log2(law.rows / _EXACT_RANKS) * _BINS_PER_OCTAVE)) + 1
        edges = np.concatenate([edges, np.geomspace(_EXACT_RANKS, law.rows, bins + 1)[1:]])
    ranks = np.diff(edges)
    probabilities = np.minimum(law.between(edges) / ranks, 1.0 - 1e-15)
    return float((-np.expm1(draws * np.log1p(-probabilities)) * ranks).sum())


def _solve_exponent(law: RankLaw, *, draws: float, distinct: float) -> RankLaw:
    """The law with the exponent that gives the number of distinct ids, or the nearest end of the range."""
    low, high = 0.0, _STEEPEST
    for _ in range(30):
        law = replace(law, exponent=(low + high) / 2)
        low, high = (law.exponent, high) if expected_distinct(law, draws) > distinct else (low, law.exponent)
    return law


def main() -> None:
    """Write profiles.json."""
    measured: dict[str, Entry] = json.loads(STATISTICS_FILE.read_text(encoding="utf-8"))
    profiles = {name: fit_dataset(SCHEMAS[name], figures) for name, figures in measured.items()}
    write_json(PROFILES_FILE, profiles)


if __name__ == "__main__":
    main()
