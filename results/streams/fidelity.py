"""The synthetic streams beside real rows, at equal row counts: figure, real, synthetic, bound.

    python results/streams/fidelity.py [--datasets avazu,...] [--parts 2] [--seeds 0,1,2] [--out FILE]

Reads the samples in the folder that EMBEDDING_OFFLOAD_DATA names (default: ../shared/data). Every sample is compared as
a whole and in `--parts` runs of consecutive rows, each with fresh synthetic rows of the same number; the synthetic
figure is the one of all seeds that lies farthest from the real one. Tables are those at published sizes.

A bound is what the streams promise for a sample that covers hours or days. Samples of one hour or less are shown
without bounds: ids return within the hour, so that equally many rows have fewer distinct ids, and a stream of
independent samples cannot show both.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from compared_rows import (
    AVAZU_MARKERS,
    FOLDER,
    LONG,
    SHORT,
    Mask,
    Rows,
    click_rate,
    counts,
    draw_rows,
    read_rows,
    sample_click_rate,
)
from fit_profiles import STATISTICS_FILE

from suite.records.store import write_json
from workloads.schema import SCHEMAS

BATCH = 2048
TOPS = (0.001, 0.01, 0.05, 0.10)
LARGE_TABLE = 1000
TOP_BOUND = 0.03
DISTINCT_BOUND = 0.10
TABLE_BOUND = 0.25
CTR_BOUND = 0.005
DENSE_PAIR = "both missing:"
MIXED_PAIR = "both missing, beyond chance:"
GROUP_BOUND = 0.02  # and the noise of both draws, see `group_bound`
UNIQUE_BOUND = 0.10
_CANDIDATES = 16


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure. `bound` is None where nothing is promised; `relative` says whether it is one of the real figure."""

    dataset: str
    sample: str
    figure: str
    real: float
    synthetic: float
    bound: float | None
    relative: bool

    @property
    def off(self) -> float:
        """Synthetic minus real, in the bound's terms."""
        return (self.synthetic - self.real) / (self.real if self.relative else 1.0)

    @property
    def holds(self) -> bool:
        return self.bound is None or abs(self.off) <= self.bound


def top_share(rows: Rows, fraction: float) -> float:
    """Share of all accesses, tables pooled, that go to the most frequent part of the ids seen."""
    pooled = np.sort(np.concatenate([counts(ids) for ids in rows.ids.values()]))[::-1]
    return float(pooled[: max(1, int(pooled.size * fraction))].sum() / pooled.sum())


def distinct(rows: Rows) -> dict[str, int]:
    """Distinct ids by table."""
    return {name: np.unique(ids).size for name, ids in rows.ids.items()}


def unique_share(rows: Rows) -> float:
    """Distinct ids of a batch per lookup, mean over whole batches of 2,048 consecutive rows."""
    starts = range(0, rows.count - BATCH + 1, BATCH)
    return float(np.mean([sum(distinct(rows.part(s, s + BATCH)).values()) for s in starts]) / (BATCH * len(rows.ids)))


def groups(dataset: str) -> dict[str, tuple[str, ...]]:
    """Columns that go missing together, by the group's name in statistics.json."""
    measured = json.loads(STATISTICS_FILE.read_text(encoding="utf-8"))[dataset]["groups"]
    sides = [(group["name"], group["inside"]) for group in measured]
    # Avazu's other side: rows of site traffic lack what describes an app. The device id is no such column: it has
    # its default value in many rows of either side.
    sides += [
        (f"not {group['name']}", [name for name in group["outside"] if name in AVAZU_MARKERS])
        for group in measured
        if group["outside"]
    ]
    return {name: tuple(tables) for name, tables in sides}


def jointly_missing(real: Rows, synthetic: Rows, tables: Sequence[str]) -> tuple[Mask, Mask]:
    """The rows with all tables of a group missing, of either kind of rows.

    A synthetic row does not say which id stands for a missing value. Of a group it is the id of the first column beside
    which every other column has one id throughout; without such an id there is no such row. Of a lone column it is the
    id that has the real marker's place in the order of frequency.
    """
    masks = [real.ids[name] == real.missing[name] for name in tables]
    together = np.logical_and.reduce(masks)
    first = synthetic.ids[tables[0]]
    values, frequency = np.unique(first, return_counts=True)
    ordered = values[np.argsort(frequency)[::-1][:_CANDIDATES]]
    if len(tables) == 1:
        place = int((counts(real.ids[tables[0]]) > masks[0].sum()).sum())
        return together, first == ordered[place]
    for value in ordered:
        rows = first == value
        if all(np.ptp(synthetic.ids[name][rows]) == 0 for name in tables[1:]):
            return together, rows
    return together, np.zeros(first.size, np.bool_)


def alike(gaps: Mapping[str, Mask]) -> list[tuple[str, ...]]:
    """The dense columns that have missing values, those together that are missing in the very same rows."""
    found: dict[bytes, list[str]] = {}
    for name, rows in gaps.items():
        if rows.any():
            found.setdefault(rows.tobytes(), []).append(name)
    return [tuple(names) for names in found.values()]


def joint_share(first: Mask, second: Mask) -> float:
    """Share of rows in which both are missing."""
    return float((first & second).mean())


def beyond_chance(first: Mask, second: Mask) -> float:
    """Share of rows in which both are missing, less what it would be if they were independent."""
    return joint_share(first, second) - float(first.mean() * second.mean())


def farthest_pair(
    pairs: Iterable[tuple[str, tuple[Mask, Mask], tuple[Mask, Mask]]], measure: Callable[[Mask, Mask], float]
) -> tuple[str, float, float, float]:
    """The pair of columns, each with its real and its synthetic gaps, that is farthest off for its bound.

    Returns:
        The pair's name, what the measure says of the real and of the synthetic gaps, and the bound.
    """
    measured = [
        (name, measure(real, more_real), measure(ours, more_ours), group_bound(joint_share(real, more_real), real.size))
        for name, (real, ours), (more_real, more_ours) in pairs
    ]
    return max(measured, key=lambda pair: abs(pair[2] - pair[1]) / pair[3])


def group_bound(share: float, rows: int) -> float:
    """0.02, which app traffic needs as it follows the hour of the day, and three standard deviations of the draws."""
    return GROUP_BOUND + 3.0 * math.sqrt(2.0 * share * (1.0 - share) / rows)


def compare(dataset: str, sample: str, real: Rows, synthetic: Rows, *, bounded: bool) -> Iterator[Line]:
    """All figures but the click rate."""

    def line(figure: str, a: float, b: float, bound: float, *, relative: bool) -> Line:
        return Line(
            dataset=dataset,
            sample=sample,
            figure=figure,
            real=a,
            synthetic=b,
            bound=bound if bounded else None,
            relative=relative,
        )

    for fraction in TOPS:
        shares = (top_share(real, fraction), top_share(synthetic, fraction))
        yield line(f"access share of the top {100 * fraction:g} % of ids", *shares, TOP_BOUND, relative=False)
    ours, theirs = distinct(synthetic), distinct(real)
    yield line("distinct ids", sum(theirs.values()), sum(ours.values()), DISTINCT_BOUND, relative=True)
    for name, ids in theirs.items():
        if ids > LARGE_TABLE:
            yield line(f"distinct ids of {name}", ids, ours[name], TABLE_BOUND, relative=True)
    if real.count >= BATCH:
        shares = (unique_share(real), unique_share(synthetic))
        yield line(f"unique ids per lookup, batches of {BATCH:,}", *shares, UNIQUE_BOUND, relative=True)
    events = {
        group: jointly_missing(real, synthetic, tables)
        for group, tables in groups(dataset).items()
        if all(name in real.missing for name in tables)
    }

    for group, masks in events.items():
        shares = (float(masks[0].mean()), float(masks[1].mean()))
        yield line(group, *shares, group_bound(shares[0], real.count), relative=False)
    sets = alike(real.gaps)
    for names in sets:
        if len(names) > 1:
            theirs, ours = (float(np.all([rows.gaps[n] for n in names], axis=0).mean()) for rows in (real, synthetic))
            bound = group_bound(theirs, real.count)
            yield line(f"missing in {', '.join(names)}", theirs, ours, bound, relative=False)
    gaps = {names[0]: (real.gaps[names[0]], synthetic.gaps[names[0]]) for names in sets}
    if len(gaps) > 1:
        pairs = ((f"{a}, {b}", gaps[a], gaps[b]) for a, b in itertools.combinations(gaps, 2))
        name, *figures = farthest_pair(pairs, joint_share)
        yield line(f"{DENSE_PAIR} {name}", *figures, relative=False)
    if gaps and events:
        pairs = ((f"{a}, {b}", gaps[a], events[b]) for a, b in itertools.product(gaps, events))
        name, *figures = farthest_pair(pairs, beyond_chance)
        yield line(f"{MIXED_PAIR} {name}", *figures, relative=False)


def farthest(lines: Sequence[Sequence[Line]]) -> list[Line]:
    """The worst seed of each figure."""
    return [max(same, key=lambda line: abs(line.off)) for same in zip(*lines, strict=True)]


def all_lines(dataset: str, *, parts: int, seeds: Sequence[int]) -> Iterator[Line]:
    """Every figure of a dataset, for the long sample, its parts, and the short sample."""
    published = SCHEMAS[dataset].ctr
    rates = [click_rate(dataset, seed=seed) for seed in seeds]
    rate = max(rates, key=lambda rate: abs(rate - published))
    sampled, noise = sample_click_rate(dataset, FOLDER / LONG[dataset])
    for sample, figure, real, bound in (
        ("published", "click rate", published, CTR_BOUND),
        (LONG[dataset], f"click rate, noise {noise:.4f}", sampled, None),
    ):
        yield Line(
            dataset=dataset, sample=sample, figure=figure, real=real, synthetic=rate, bound=bound, relative=False
        )
    for name, bounded in ((LONG[dataset], True), (SHORT.get(dataset), False)):
        if name is None:
            continue
        rows = read_rows(dataset, FOLDER / name)
        edges = np.linspace(0, rows.count, parts + 1).astype(int)
        pieces = {f"{name}, {rows.count:,} rows": rows}
        if bounded and parts > 1:
            for start, stop in itertools.pairwise(edges):
                pieces[f"rows {start + 1:,} to {stop:,}"] = rows.part(start, stop)
        for sample, real in pieces.items():
            drawn = (draw_rows(dataset, rows=real.count, seed=seed) for seed in seeds)
            yield from farthest([list(compare(dataset, sample, real, rows, bounded=bounded)) for rows in drawn])


def cells(line: Line) -> tuple[str, ...]:
    """A line of the table."""
    unit = "{:+.1%}" if line.relative else "{:+.4f}"
    number = "{:,.0f}" if line.real > 1 else "{:.4f}"
    bound = "" if line.bound is None else (f"{line.bound:.0%}" if line.relative else f"{line.bound:.3g}")
    verdict = "" if line.bound is None else ("holds" if line.holds else "FAILS")
    return (
        line.dataset, line.sample, line.figure, number.format(line.real), number.format(line.synthetic),
        unit.format(line.off), bound, verdict,
    )  # fmt: skip


def main() -> int:
    """Compare and print; 1 where a bound fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(LONG), help="default: %(default)s")
    parser.add_argument("--parts", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--seeds", default="0,1,2", help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="write the lines as JSON")
    arguments = parser.parse_args()
    datasets = arguments.datasets.split(",")
    if unknown := set(datasets) - set(LONG):
        parser.error(f"--datasets {','.join(sorted(unknown))}: choose from {', '.join(LONG)}")
    if not FOLDER.is_dir():
        parser.error(f"the samples are not in {FOLDER}: set EMBEDDING_OFFLOAD_DATA")
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    lines = [line for dataset in datasets for line in all_lines(dataset, parts=arguments.parts, seeds=seeds)]
    titles = ["dataset", "rows", "figure", "real", "synthetic", "off", "bound", ""]
    sys.stdout.write(pd.DataFrame(map(cells, lines), columns=titles).to_string(index=False) + "\n")
    if arguments.out:
        record = [asdict(line) | {"off": line.off, "holds": line.holds} for line in lines]
        write_json(arguments.out, record)
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
