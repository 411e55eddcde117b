"""The tables of cells on several ranks: what each rank holds and does, and what they send each other."""

import statistics
from collections.abc import Callable, Sequence

from suite.records.groups import Group
from suite.records.measured import Ranks
from suite.tables.quantities import MISSING, amount, gigabytes, megabytes, percent, score
from suite.tables.rows import Row, merged_rows, remarks
from suite.tables.settings import CPU_CAVEAT, facts, headings
from suite.tables.sheet import Block, Column, block

LEGEND = (
    "Ranks: processes that share the tables and each batch; the dense layers are data-parallel. Per rank: the smallest "
    "and the largest. Imbalance: the largest over the mean of all ranks, in the counted steps of the first round.",
    "Sent: by all ranks together to others per iteration: ids with the lengths of bags, and pooled vectors with their "
    "gradients.",
)
_NOT_RANKED = (
    "Speed is that of gloo on one machine, whose ranks share its cores: it says nothing of GPUs, and is not ranked"
)


def on_ranks(group: Group) -> bool:
    """Whether a group's systems are shared by ranks; it has a table of its own."""
    return group.cell.ranks is not None


def _ranks(row: Row) -> Ranks | None:
    """What the ranks of the first round did, whose traffic was counted; None where the cell failed."""
    return next((measurement.ranks for measurement in row.measurements if measurement.ranks is not None), None)


def _per_rank(row: Row, field: str) -> list[int]:
    """A field of `RankShare` by rank; empty where it is not known."""
    ranks = _ranks(row)
    counts = [getattr(share, field) for share in ranks.shares] if ranks is not None else []
    return [] if None in counts else counts


def _steps_per_s(row: Row) -> float | None:
    """Mean over rounds."""
    ranks = [measurement.ranks for measurement in row.measurements if measurement.ranks is not None]
    speeds = [one.steps_per_s for one in ranks if one.steps_per_s is not None]
    return statistics.fmean(speeds) if speeds else None


def imbalance(counts: Sequence[int]) -> float | None:
    """The largest over the mean; None where there is nothing to share."""
    return max(counts) * len(counts) / sum(counts) if sum(counts) else None


def _imbalance(words: str, field: str) -> Column[Row]:
    def show(row: Row) -> str:
        found = imbalance(_per_rank(row, field))
        return MISSING if found is None else f"{found:.2f}"

    return Column(words=words, show=show)


def _range(words: str, field: str, quantity: Callable[[int | None], str] = megabytes) -> Column[Row]:
    def show(row: Row) -> str:
        found = _per_rank(row, field)
        return " to ".join(dict.fromkeys(map(quantity, (min(found), max(found))))) if found else MISSING

    return Column(words=words, show=show)


def _sent(words: str, field: str) -> Column[Row]:
    def show(row: Row) -> str:
        found, ranks = _per_rank(row, field), _ranks(row)
        return megabytes(sum(found) / ranks.steps if ranks is not None and found else None)

    return Column(words=words, show=show)


COLUMNS: tuple[Column[Row], ...] = (
    Column(words="system", show=lambda row: row.system, text=True),
    Column(words="AUROC", show=lambda row: score(row.auroc)),
    Column(words="verified", show=lambda row: row.verified or MISSING, text=True),
    Column(words="steps/s", show=lambda row: amount(_steps_per_s(row))),
    _range("tables MB per rank", "table_bytes"),
    _range("device MB per rank", "device_bytes"),
    _range("CPU GB per rank", "host_peak_rss_bytes", gigabytes),
    _range("GPU GB reserved per rank", "device_reserved_bytes", gigabytes),
    Column(words="hit rate", show=lambda row: percent(row.hit_rate, 2)),
    _imbalance("lookups imbalance", "lookups"),
    _imbalance("misses imbalance", "unique_misses"),
    _imbalance("bytes imbalance", "table_bytes"),
    _sent("MB of ids sent per it", "ids_bytes"),
    _sent("MB pooled sent per it", "pooled_bytes"),
    Column(words="status", show=lambda row: row.status, text=True),
)


def rank_blocks(groups: Sequence[Group]) -> tuple[Block, ...]:
    """A table per group of systems on ranks, few ranks first."""
    mine = [group for group in groups if on_ranks(group)]
    mine.sort(key=lambda group: (group.key.workload_order, group.cell.ranks or 0))
    return tuple(_block(group, heading) for group, heading in zip(mine, headings(mine), strict=True))


def _block(group: Group, heading: str) -> Block:
    cell = group.cell
    rows = [row for row in merged_rows(group) if not row.again]
    where = f"{cell.nodes} machines" if cell.nodes > 1 else "one machine"
    backends = dict.fromkeys(ranks.backend for row in rows if (ranks := _ranks(row)) is not None)
    return block(
        COLUMNS,
        [(row, row.records) for row in rows],
        heading=heading,
        facts=(
            *(fact for fact in facts([group]) if fact != CPU_CAVEAT),
            f"Ranks: {cell.ranks} on {where}{''.join(f', {name}' for name in backends)}",
            *([_NOT_RANKED] if group.on_cpu else []),
        ),
        notes=remarks(rows),
    )
