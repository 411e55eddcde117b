"""The least time of a step on described hardware: flops and bytes that no schedule avoids, at the peak rates.

Nothing is measured or fitted. Every path (the processors, the device's memory, the link each way) is taken to work all
the time beside the others, so a step takes at least as long as its busiest path. Launches, planning on the host, reads
of host memory and everything that is waited for come on top: no system reaches the bound.
"""

from functools import cache
from pathlib import Path

from pydantic import Field

from suite.advise.case import RESIDENT, UVM, Case
from suite.records.measured import Model
from suite.simulate.models import registry as models
from suite.simulate.models.model import CannotReplay, Setting, Span, Tally, replay
from suite.simulate.options import read_input
from suite.simulate.trace import Trace
from systems.contract import OptimizerKind
from systems.freq_cache import sizing
from systems.freq_cache.sizing import CacheSpec
from systems.registry import Variant

EXAMPLES = ("a100", "h100", "h200")
"""Machines that come along, by name."""


class Hardware(Model, strict=True):
    """A machine with one CUDA device. JSON; see the examples beside this module."""

    name: str = Field(min_length=1)
    device_memory_bytes: int = Field(gt=0)
    memory_gb_per_s: float = Field(gt=0)
    """Peak rate of the device's memory."""
    link_gb_per_s: float = Field(gt=0)
    """Between host and device, each way."""
    fp32_flops: float = Field(gt=0)
    tf32_flops: float | None = Field(default=None, gt=0)
    """None: the device has no TF32."""
    sources: dict[str, str] = Field(min_length=1)
    """Source of each figure, by field. All rates are peaks."""


def load_hardware(name: str) -> Hardware:
    """A described machine: one of `EXAMPLES`, or a file.

    Raises:
        BadOption: it cannot be read, or a field is missing, unknown or out of range; the message names file and field.
    """
    path = Path(__file__).with_name("hardware") / f"{name}.json" if name in EXAMPLES else Path(name)
    remedy = f"give {', '.join(EXAMPLES)}, or a JSON file like suite/advise/hardware/a100.json"
    return read_input(Hardware, path, flag="--hardware ", remedy=remedy)


def counts_of(case: Case, trace: Trace, span: Span) -> Tally:
    """Count rows of a case by replaying a span of a trace, each cache once.

    Raises:
        CannotReplay: the cache cannot run at that size.
    """
    model = Variant("uvm")  # without a cache, rows are read in place
    if case.caches:
        name = "freq_cache" if case.name == "freq_cache" else "fbgemm_uvm_caching"
        known, given = models.load(Variant(name)).variants, case.spec.parameters.items()
        model = Variant(name, tuple((key, value) for key, value in given if key in known))
    return _counted(model, Setting(trace=trace, span=span, slots=case.slots))


@cache
def _counted(model: Variant, setting: Setting) -> Tally:
    return replay(models.build(model, setting))


class LeastSeconds(Model):
    """Least seconds of a step on each path: the processors, the device's memory, and the link each way."""

    flops: float
    device_memory: float
    link_in: float
    link_out: float

    @property
    def compute(self) -> float:
        """Least seconds of the device alone."""
        return max(self.flops, self.device_memory)

    @property
    def link(self) -> float:
        """Least seconds of the link alone."""
        return max(self.link_in, self.link_out)

    @property
    def step(self) -> float:
        """The bound: that of the busiest path."""
        return max(self.compute, self.link)


def least_seconds(case: Case, counts: Tally, hardware: Hardware) -> LeastSeconds:
    """Bound the step of a case.

    - flops: the products of forward and backward;
    - device memory: activations written and read once, dense parameters read and written, and where rows are on the
      device while they train, each distinct row with its optimizer state, read and written;
    - link: rows that a cache fetches and writes back, with the state that goes along; without a cache each distinct row
      once each way; where the host pools, the pooled vectors and their gradients.

    Raises:
        CannotReplay: what the system moves has no model.
    """
    link_in, link_out = (size / counts.batches for size in _link_bytes(case, counts))
    trained = 0.0 if case.name in UVM or case.name == "cpu_embeddings" else counts.unique_ids / counts.batches
    rows = 2 * trained * (case.row_bytes + case.state_bytes)
    memory = 2 * 4 * (case.activation_values + case.dense_parameters) + rows
    return LeastSeconds(
        flops=case.dense_flops / ((hardware.tf32_flops if case.cell.tf32 else None) or hardware.fp32_flops),
        device_memory=memory / (hardware.memory_gb_per_s * 1e9),
        link_in=link_in / (hardware.link_gb_per_s * 1e9),
        link_out=link_out / (hardware.link_gb_per_s * 1e9),
    )


def _link_bytes(case: Case, counts: Tally) -> tuple[int, int]:
    """Bytes over the link in the counted batches, to the device and to the host."""
    if case.name in RESIDENT:
        return 0, 0
    if case.name == "cpu_embeddings":
        pooled = counts.batches * case.cell.batch_size * len(case.workload.tables) * case.row_bytes
        return pooled, pooled
    # row-wise state is on the device; other state stays beside the rows on the host, cached rows or not
    state = 0 if case.spec.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD else case.state_bytes
    if case.name in UVM:
        crossing = counts.unique_ids * (case.row_bytes + state)
        return crossing, crossing
    if case.name == "freq_cache":
        record = sizing.layout_of(CacheSpec.of(case.spec), case.spec.tables[0]).record_bytes
        return counts.rows_fetched * record, counts.rows_written_back * record
    if case.caches:
        beside = counts.unique_ids * state
        return counts.rows_fetched * case.row_bytes + beside, counts.rows_written_back * case.row_bytes + beside
    raise CannotReplay(f"what {case.name} moves has no model here: run_bench.py measures it")
