"""Some tables of a trace, as if there were no others: what one cache of several sees."""

from collections.abc import Sequence

import numpy as np

from suite.records.options import BadOption
from suite.simulate.traces.trace import Int64s, Trace
from systems.freq_cache.planner.planner import Ids


class SomeTables(Trace):
    """The ids of some tables of a trace.

    Args:
        trace: All tables.
        names: Those to keep, in the order in which their rows are numbered.

    Raises:
        BadOption: the trace has no such table.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        places = {name: place for place, (name, _) in enumerate(trace.tables)}
        if unknown := [name for name in names if name not in places]:
            raise BadOption(f"{trace.name} has no table {', '.join(unknown)}: it has {', '.join(places)}")
        self._kept = [places[name] for name in names]
        self.name = trace.name
        self.tables = tuple(trace.tables[place] for place in self._kept)
        self.length = trace.length
        self.batch_lookups = trace.batch_lookups
        self._trace = trace

    def ids(self, index: int) -> Ids:
        return self.of(self._trace.ids(index))

    def of(self, ids: Ids) -> Ids:
        """These tables' part of the ids of all."""
        parts = np.split(ids.values, ids.ends[:-1])
        kept = [parts[place] for place in self._kept]
        return Ids(np.concatenate(kept), np.cumsum([part.size for part in kept]), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        every = self._trace.frequencies()
        return [every[place] for place in self._kept]
