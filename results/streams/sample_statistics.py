"""Measures what `fit_profiles.py` reads of the real samples: growth curves and missing dense columns.

    python results/streams/sample_statistics.py

puts them into statistics.json. Run `python results/streams/fit_profiles.py` afterwards.
"""

import itertools
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from compared_rows import FOLDER, LONG, Mask, counts, read_rows
from fit_profiles import STATISTICS_FILE
from scipy.stats import hypergeom

GROWTH_ROWS = (64, 256, 1024, 4096, 16384)


def expected_in_subset(counts: Sequence[int], *, rows: int, subset: int) -> float:
    """Expected number of distinct ids among `subset` rows drawn from `rows` without replacement (Hurlbert 1971).

    `counts` are the rows of each id; rows of the sample in which the column is missing are among `rows`.
    """
    frequency, ids = np.unique(counts, return_counts=True)
    return float((ids * hypergeom.sf(0, rows, frequency, subset)).sum())


def growth(dataset: str) -> dict[str, dict[str, float]]:
    """Distinct ids to expect in random subsets of the long sample, by table; missing values of Criteo are left out."""
    rows = read_rows(dataset, FOLDER / LONG[dataset])
    sizes = [*(size for size in GROWTH_ROWS if size < rows.count), rows.count]
    curves: dict[str, dict[str, float]] = {}
    for name, ids in rows.ids.items():
        present = ids if dataset == "avazu" or name not in rows.missing else ids[ids != rows.missing[name]]
        frequency = counts(present)
        curves[name] = {
            str(size): round(expected_in_subset(frequency, rows=rows.count, subset=size), 1) for size in sizes
        }
    return curves


def dense_missing(dataset: str) -> dict[str, Any]:
    """Rows of the long sample by the dense columns missing in them, in and outside the event they depend on most.

    That is the group with the largest difference between a joint share and the product of the two shares.
    """
    rows = read_rows(dataset, FOLDER / LONG[dataset])
    groups = json.loads(STATISTICS_FILE.read_text(encoding="utf-8"))[dataset]["groups"]
    events = {
        group["name"]: np.logical_and.reduce([rows.ids[name] == rows.missing[name] for name in group["inside"]])
        for group in groups
    }

    def dependence(event: Mask) -> float:
        return max(abs((gaps & event).mean() - gaps.mean() * event.mean()) for gaps in rows.gaps.values())

    group = max(events, key=lambda name: dependence(events[name]))
    return {
        "group": group,
        "inside": patterns(rows.gaps, events[group]),
        "outside": patterns(rows.gaps, ~events[group]),
    }


def patterns(gaps: Mapping[str, Mask], chosen: Mask) -> dict[str, int]:
    """Chosen rows by the names of their missing columns, the most frequent pattern first."""
    rows = np.stack(list(gaps.values()), axis=1)[chosen]
    found = Counter(" ".join(itertools.compress(gaps, row)) for row in rows)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def write_statistics() -> None:
    """Put the measured curves and patterns into statistics.json."""
    measured = json.loads(STATISTICS_FILE.read_text(encoding="utf-8"))
    for dataset in LONG:
        for name, curve in growth(dataset).items():
            measured[dataset]["tables"][name]["growth"] = curve
        measured[dataset]["dense_missing"] = dense_missing(dataset)
    STATISTICS_FILE.write_text(laid_out(measured, levels=3) + "\n", encoding="utf-8")


def laid_out(value: object, *, levels: int, indent: str = "") -> str:
    """JSON with a line per item on the outer levels, and what lies below them on one line."""
    if levels == 0 or not isinstance(value, dict | list):
        return json.dumps(value)
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {laid_out(item, levels=levels - 1, indent=inner)}" for key, item in value.items()]
    else:
        items = [laid_out(item, levels=levels - 1, indent=inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(inner + item for item in items) + "\n" + indent + closing


if __name__ == "__main__":
    if not FOLDER.is_dir():
        sys.exit(f"the samples are not in {FOLDER}: set EMBEDDING_OFFLOAD_DATA")
    write_statistics()
