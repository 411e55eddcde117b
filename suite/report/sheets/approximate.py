"""Quality against bytes: approximate systems beside the exact baseline."""

from __future__ import annotations

from suite.report.source import Source
from suite.tables.approximate import HEADING, approximate_block, approximations
from suite.tables.settings import details, facts, headings
from suite.tables.sheet import Sheet, raw_frame, setting_numbers

_LEGEND = (
    "Table MB: rows and optimizer state of whole tables, by the system's own account; slots on the device that hold "
    "copies of rows of a slower tier count as device MB alone. Share: of the exact baseline's. MB = 1e6 bytes.",
    "AUROC: on the test split, mean over rounds, which differ in seed, with Student's 95 % interval. Below exact: the "
    "baseline's AUROC less the system's, round by round, at equal samples trained.",
    "vs full_gpu: speed beside the baseline in the same turns; they compute different things, so it is no ranking.",
)


def approximate_sheet(source: Source) -> Sheet | None:
    """A block per group with approximate systems; None where there is none."""
    blocks = [
        block
        for group, heading in zip(source.groups, headings(source.groups), strict=True)
        for block in approximate_block(group, heading, (*facts([group]), *details([group])))
    ]
    numbers = [
        setting_numbers(group, group.rounds_by_system[one.row.system]) | one.numbers
        for group in source.groups
        for one in approximations(group)
    ]
    if not blocks:
        return None
    return Sheet(name="approximate", title=HEADING, legend=_LEGEND, blocks=tuple(blocks), frame=raw_frame(numbers))
