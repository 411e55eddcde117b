"""The costs of a step on a described machine: bytes over bandwidths, flops over rates, launches times their price.

Nothing here is fitted to a measured step. A term counts the bytes that the kernels must move, each over the path that
it takes: the device's memory, the link, or the host's memory. What caches of the processors absorb is left out, so
that terms are upper bounds where rows repeat.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from suite.advise.case import Case
from suite.advise.costs import Basis, Counts, NotCalibrated, Terms
from suite.records.base import Model
from suite.simulate.options import read_input
from systems.contract import OptimizerKind
from systems.freq_cache import sizing

EXAMPLES = ("a100", "h100", "h200")
"""Machines that come along, by name."""


class Attained(Model, strict=True):
    """Shares of the peaks that kernels reach."""

    memory: float = Field(gt=0, le=1)
    flops: float = Field(gt=0, le=1)


class Hardware(Model, strict=True):
    """A machine with one CUDA device. JSON; see the examples beside this module."""

    name: str = Field(min_length=1)
    device_memory_bytes: int = Field(gt=0)
    memory_gb_per_s: float = Field(gt=0)
    """Of the device, at its peak."""
    link_to_device_gb_per_s: float = Field(gt=0)
    """What copies from pinned memory reach, not the peak of the bus."""
    link_to_host_gb_per_s: float = Field(gt=0)
    fp32_flops: float = Field(gt=0)
    tf32_flops: float | None = Field(default=None, gt=0)
    """None: the device has no TF32."""
    launch_s: float = Field(gt=0)
    """Of one operation, as the host queues them one after another."""
    host_gather_gb_per_s: float = Field(gt=0)
    """Rows picked at random in host memory, all threads together."""
    host_planning_ids_per_s: float = Field(gt=0)
    """Ids that the planner of our cache gets through, all threads together."""
    attained: Attained
    sources: dict[str, str] = Field(min_length=1)
    """Where each figure comes from, by field; `assumed` where it is a guess, with what it rests on."""


def load_hardware(name: str) -> Hardware:
    """A described machine: one of `EXAMPLES`, or a file.

    Raises:
        BadOption: it cannot be read, or a field is missing, unknown or out of range; the message names file and field.
    """
    path = Path(__file__).with_name("hardware") / f"{name}.json" if name in EXAMPLES else Path(name)
    remedy = f"give {', '.join(EXAMPLES)}, or a JSON file like suite/advise/hardware/a100.json"
    return read_input(Hardware, path, flag="--hardware ", remedy=remedy)


class Matmul(StrEnum):
    """In which precision matrices are multiplied: torch's default is fp32 since 1.12, and was tf32 before."""

    FP32 = "fp32"
    TF32 = "tf32"


_ACTIVATION_PASSES = 4
"""Times that an activation crosses the device's memory: written and read in forward, its gradient in backward."""
_SORT_BYTES = 12 * 2 * 4
"""Per id that backward sorts: a key of 8 B and a value of 4 B, read and written in four passes of a radix sort."""
_SET_BYTES = 32 * 8
"""Per distinct row that fbgemm's cache looks for: the 32 ways of its set."""
_OFFSET_BYTES, _SLOT_BYTES = 8, 4
_LAUNCHES_PER_LAYER = 9
"""Forward: product with bias, activation. Backward: activation, two products, bias. Optimizer: three."""
_LAUNCHES_ELSEWHERE = 40
"""Interaction, loss, zeroed gradients and copies of a batch."""
_LAUNCHES_OF_KERNEL = {"full_gpu": 20, "fbgemm_uvm": 20, "torchrec_uvm": 40, "freq_cache": 40}
_LAUNCHES_CACHING = 60
"""Lookup, a fused backward (sort, segments, update); torchrec's input distribution; population of a cache."""


@dataclass(frozen=True)
class DescribedCosts:
    """Costs on a described machine, by the same names as calibrated ones, and `launches`.

    - dense: products at the attained rate, activations over the device's memory;
    - lookup: a row per id and the pooled rows, over the device's memory, or where rows are read in place over the link;
    - update: ids sorted, gradients read, a row and its state read and written per distinct row;
    - planning: on the host for our cache, by its planner's rate; on the device for fbgemm's, a sort and the sets;
    - moving: rows over the link, for our cache also through host memory; what goes on beside training is hidden as far
      as training lasts;
    - launches: what queueing all operations takes longer than the device computes.
    """

    hardware: Hardware
    matmul: Matmul = Matmul.FP32
    basis: ClassVar[Basis] = "modelled"

    @property
    def machine(self) -> str:
        """The machine's name."""
        return self.hardware.name

    def terms(self, case: Case, counts: Counts) -> Terms:
        """The named costs of a step. Raises `NotCalibrated` if they are not known."""
        models: dict[str, Callable[[Case, Counts], dict[str, float]]] = {
            "full_gpu": self._resident,
            "fbgemm_uvm": self._in_place,
            "torchrec_uvm": self._in_place,
            "fbgemm_uvm_caching": self._cached_by_device,
            "torchrec_uvm_caching": self._cached_by_device,
            "freq_cache": self._cached_by_host,
        }
        if case.name not in models:
            raise NotCalibrated(
                f"{case.name} has no model of its costs on a described machine: name {', '.join(models)}"
            )
        if case.parameters.get("tier", "host") != "host":
            raise NotCalibrated(
                f"{case.system} has no model: a disk, and single rows across the link, are not described"
            )
        terms = {"dense": self._dense_s(case)} | models[case.name](case, counts)
        beside = {name: terms.pop(name, 0.0) for name in ("planning", "moving")}
        computing_s = sum(terms.values())
        terms["launches"] = max(0.0, self._launches(case) * self.hardware.launch_s - computing_s)
        hidden = {}
        room_s = sum(terms.values()) if case.overlaps else 0.0
        for name, seconds in beside.items():
            hidden[name] = min(seconds, room_s)
            room_s -= hidden[name]
            terms[name] = seconds - hidden[name]
        return terms, hidden

    def _dense_s(self, case: Case) -> float:
        machine, activations = self.hardware, _ACTIVATION_PASSES * 4 * case.shape.activation_values
        tf32 = self.matmul is Matmul.TF32 or case.shape.tf32
        flops = (machine.tf32_flops if tf32 else None) or machine.fp32_flops
        return case.shape.dense_flops / (flops * machine.attained.flops) + self._memory_s(activations)

    def _resident(self, case: Case, counts: Counts) -> dict[str, float]:
        return {
            "lookup": self._memory_s(counts.lookups * case.row_bytes + _pooled_bytes(case)),
            "update": self._memory_s(_sorting_bytes(case, counts) + 2 * counts.distinct * case.record_bytes),
        }

    def _in_place(self, case: Case, counts: Counts) -> dict[str, float]:
        """A row per id crosses the link in forward, and one per distinct row both ways in backward."""
        crossing = case.row_bytes + _state_over_link(case)
        return {
            "lookup": self._in_s(counts.lookups * case.row_bytes) + self._memory_s(_pooled_bytes(case)),
            "update": self._memory_s(_sorting_bytes(case, counts))
            + self._in_s(counts.distinct * crossing)
            + self._out_s(counts.distinct * crossing),
        }

    def _cached_by_device(self, case: Case, counts: Counts) -> dict[str, float]:
        """Rows of misses cross the link; state that is not row-wise is never cached."""
        state = counts.distinct * _state_over_link(case)
        return self._resident(case, counts) | {
            "planning": self._memory_s(counts.lookups * _SORT_BYTES + counts.distinct * _SET_BYTES),
            "moving": self._in_s(counts.rows_fetched * case.row_bytes + state)
            + self._out_s(counts.rows_written_back * case.row_bytes + state),
        }

    def _cached_by_host(self, case: Case, counts: Counts) -> dict[str, float]:
        """Rows go through staging on the host, their optimizer state with them; slots of ids are sent along."""
        record = sizing.layout_of(case.spec, case.spec.tables[0]).record_bytes
        sent = counts.lookups * _SLOT_BYTES + case.shape.batch_size * case.shape.tables * _OFFSET_BYTES
        return self._resident(case, counts) | {
            "planning": counts.lookups / self.hardware.host_planning_ids_per_s,
            "moving": counts.moved * record / (self.hardware.host_gather_gb_per_s * 1e9)
            + self._in_s(counts.rows_fetched * record + sent)
            + self._out_s(counts.rows_written_back * record),
        }

    def _launches(self, case: Case) -> int:
        kernel = _LAUNCHES_OF_KERNEL.get(case.name, _LAUNCHES_CACHING)
        return _LAUNCHES_PER_LAYER * len(case.shape.layers) + _LAUNCHES_ELSEWHERE + kernel

    def _memory_s(self, size: float) -> float:
        return size / (self.hardware.memory_gb_per_s * 1e9 * self.hardware.attained.memory)

    def _in_s(self, size: float) -> float:
        return size / (self.hardware.link_to_device_gb_per_s * 1e9)

    def _out_s(self, size: float) -> float:
        return size / (self.hardware.link_to_host_gb_per_s * 1e9)


def _pooled_bytes(case: Case) -> int:
    return 4 * case.shape.batch_size * case.shape.tables * case.shape.embedding_dim


def _sorting_bytes(case: Case, counts: Counts) -> float:
    """Of ids that backward sorts, and of the gradients that it reads for them."""
    return counts.lookups * (_SORT_BYTES + 4 * case.shape.embedding_dim)


def _state_over_link(case: Case) -> int:
    """State of a row that lies on the host with rows in UVM: row-wise state is on the device."""
    return 0 if case.spec.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD else case.state_bytes
