"""Minimum misses and bytes moved of any cache with as many slots, in the counted steps of a cell."""

from collections.abc import Callable, Sequence

from suite.records.measured import Optimum
from suite.run.cell.setup import CellSetup
from suite.simulate.models import registry as models
from suite.simulate.models.model import RowBytes, Setting, Span, replay
from suite.simulate.trace import WorkloadTrace
from systems.contract import row_bytes_of
from systems.registry import Variant


def optimum_of(
    setup: CellSetup, slots: int, *, known: Sequence[Optimum] = (), beat: Callable[[], None] = lambda: None
) -> Optimum:
    """Replay Belady's rule over the ids that the cell trained on.

    All steps are replayed, but only misses of the counted steps cost anything. So the counted steps start with the best
    rows that a cache could hold by then: any that an earlier step used, and any of the most frequent rows.

    Args:
        setup: The cell's setup; its workload is read again, twice.
        slots: Slots of its system's cache, at least one.
        known: Optima of cells that trained on the same stream; one for the same cache is reused.
        beat: Called after every replayed step, to report progress.

    Raises:
        CannotReplay: the drive of temporary files is full.
    """
    for found in known:
        if (found.slots, found.bypasses) == (slots, setup.system_class.bypasses):
            return found
    cell, spec, bypass = setup.cell, setup.spec, "on" if setup.system_class.bypasses else "off"
    first = cell.steps - cell.counted_steps
    trace = WorkloadTrace(setup.workload, prefix=cell.frequency_prefix)
    setting = Setting(trace=trace, span=Span(counted_from=first, stop=cell.steps), slots=slots)
    model = models.build(Variant("belady", (("bypass", bypass),)), setting)
    tally = replay(model, on_batches=lambda _: beat())
    row = RowBytes(weights=row_bytes_of(spec.tables[0]), optimizer=spec.optimizer, dim=cell.embedding_dim)
    return Optimum(
        slots=slots,
        bypasses=setup.system_class.bypasses,
        first_step=first,
        steps=tally.batches,
        unique_misses=tally.unique_misses,
        bytes_moved=sum(model.bytes_moved(tally, row)),
    )
