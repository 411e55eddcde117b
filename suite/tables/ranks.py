"""The tables of cells on several ranks: what each rank holds and does, and what they send each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.measured import Ranks, RankShare
from suite.records.record import Record
from suite.records.status import Status
from suite.tables.quantities import MISSING, amount, gigabytes, megabytes, percent, score
from suite.tables.rows import Row, failure, merged_rows, records_of, trusted
from suite.tables.settings import CPU_CAVEAT, facts, headings
from suite.tables.sheet import Block, Column, lines, notes

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


@dataclass(frozen=True)
class OnRanks:
    """A system's row, and what its ranks did; None where the cell failed."""

    row: Row
    ranks: Ranks | None

    def per_rank(self, count: Callable[[RankShare], int | None]) -> list[int]:
        """A count by rank; empty where it is not known."""
        counts = [count(share) for share in self.ranks.shares] if self.ranks is not None else []
        known = [found for found in counts if found is not None]
        return known if len(known) == len(counts) else []

    def per_step(self, count: Callable[[RankShare], int | None]) -> float | None:
        """Of all ranks together."""
        found = self.per_rank(count)
        return sum(found) / self.ranks.steps if self.ranks is not None and found else None


def imbalance(counts: Sequence[int]) -> float | None:
    """The largest over the mean; None where there is nothing to share."""
    return max(counts) * len(counts) / sum(counts) if sum(counts) else None


def _imbalance(words: str, count: Callable[[RankShare], int | None]) -> Column[OnRanks]:
    def show(row: OnRanks) -> str:
        found = imbalance(row.per_rank(count))
        return MISSING if found is None else f"{found:.2f}"

    return Column(words=words, show=show)


def _range(
    words: str, count: Callable[[RankShare], int | None], show: Callable[[int | None], str] = megabytes
) -> Column[OnRanks]:
    def cell(row: OnRanks) -> str:
        found = row.per_rank(count)
        return " to ".join(dict.fromkeys(map(show, (min(found), max(found))))) if found else MISSING

    return Column(words=words, show=cell)


COLUMNS: tuple[Column[OnRanks], ...] = (
    Column(words="system", show=lambda row: row.row.system, text=True),
    Column(words="AUROC", show=lambda row: score(row.row.auroc)),
    Column(words="verified", show=lambda row: row.row.verified or MISSING, text=True),
    Column(words="steps/s", show=lambda row: amount(row.ranks.steps_per_s) if row.ranks is not None else MISSING),
    _range("tables MB per rank", lambda share: share.table_bytes),
    _range("device MB per rank", lambda share: share.device_bytes),
    _range("CPU GB per rank", lambda share: share.host_peak_rss_bytes, gigabytes),
    _range("GPU GB reserved per rank", lambda share: share.device_reserved_bytes, gigabytes),
    Column(words="hit rate", show=lambda row: percent(row.row.hit_rate, 2)),
    _imbalance("lookups imbalance", lambda share: share.lookups),
    _imbalance("misses imbalance", lambda share: share.unique_misses),
    _imbalance("bytes imbalance", lambda share: share.table_bytes),
    Column(words="MB of ids sent per it", show=lambda row: megabytes(row.per_step(lambda share: share.ids_bytes))),
    Column(words="MB pooled sent per it", show=lambda row: megabytes(row.per_step(lambda share: share.pooled_bytes))),
    Column(words="status", show=lambda row: row.row.status, text=True),
)


def rank_blocks(groups: Sequence[Group]) -> tuple[Block, ...]:
    """A table per group of systems on ranks, few ranks first."""
    mine = [group for group in groups if on_ranks(group)]
    mine.sort(key=lambda group: (group.key.workload_order, group.cell.ranks or 0))
    return tuple(_block(group, heading) for group, heading in zip(mine, headings(mine), strict=True))


def _block(group: Group, heading: str) -> Block:
    cell = group.cell
    rows = [OnRanks(row, _ranks_of(records_of(group, row))) for row in merged_rows(group) if not row.again]
    heads = [column for column in COLUMNS if any(column.show(row) != MISSING for row in rows)]
    where = f"{cell.nodes} machines" if cell.nodes > 1 else "one machine"
    backends = dict.fromkeys(row.ranks.backend for row in rows if row.ranks is not None)
    return Block(
        heading=heading,
        facts=(
            *(fact for fact in facts([group]) if fact != CPU_CAVEAT),
            f"Ranks: {cell.ranks} on {where}{''.join(f', {name}' for name in backends)}",
            *([_NOT_RANKED] if group.on_cpu else []),
        ),
        heads=tuple(heads),
        lines=lines(heads, ((row, [run.key for run in records_of(group, row.row)]) for row in rows)),
        notes=(
            *notes(
                (f"{row.row.system}: {failure(row.row)}" for row in rows if row.row.status is not Status.OK),
                "Not measured",
            ),
            *notes(f"{row.row.system}: {note}" for row in rows for note in row.row.notes),
        ),
    )


def _ranks_of(runs: Sequence[Record]) -> Ranks | None:
    """What the ranks of the first round did, whose traffic was counted, at the mean speed of all rounds."""
    found = [measurement.ranks for measurement in trusted(runs) if measurement.ranks is not None]
    if not found:
        return None
    return found[0].model_copy(update={"steps_per_s": statistics.fmean(ranks.steps_per_s for ranks in found)})
