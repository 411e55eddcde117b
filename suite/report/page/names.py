"""Words for settings and devices: short where that tells them apart, with a digest where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from suite.records.groups import Group
from suite.records.record import Cell
from suite.tables.settings import cache


class Names:
    """The words that the page filters by.

    Args:
        groups: All that the page shows.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        settings = {(group.cell.workload, _setting(group.cell), group.cell.setting) for group in groups}
        machines = {(device_words(group), group.key.machine, group.key.threads) for group in groups}
        self._settings = Counter((workload, words) for workload, words, _ in settings)
        self._machines = Counter(words for words, _, _ in machines)

    def setting(self, cell: Cell) -> str:
        """Data, scale and cache size; with the setting's digest where two settings of a dataset read alike."""
        words = _setting(cell)
        return words if self._settings[cell.workload, words] < 2 else f"{words}, setting {cell.setting}"

    def device(self, group: Group) -> str:
        """The device; with machine and threads where two machines read alike."""
        words, key = device_words(group), group.key
        return words if self._machines[words] < 2 else f"{words}, machine {key.machine}, {key.threads} threads"


def device_words(group: Group) -> str:
    """What lookups were computed on."""
    return f"CPU: {group.key.device}" if group.on_cpu else group.key.device


def _setting(cell: Cell) -> str:
    parts = [f"{cell.data}, {cell.scale}"]
    if cell.frequency_prefix != 1 or cell.frequency_sketch_bytes is not None:
        parts.append(f"frequencies from the first {100 * cell.frequency_prefix:g} %")
    return ", ".join([*parts, cache(cell)])
