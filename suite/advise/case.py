"""A system variant with a budget on the tables of a workload, and the bytes it needs on device and host."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, Self

import torch
from pydantic import Field

from suite.records.measured import Model
from suite.records.record import Cell
from suite.run.cell.training import tables_of
from systems import registry
from systems.contract import (
    Budget,
    CacheRatio,
    DeviceBytes,
    EmbeddingSystem,
    OptimizerKind,
    SparseOptimizer,
    Support,
    SystemSpec,
    Tier,
    Verdict,
)
from systems.fbgemm.tbe import WAYS
from systems.fbgemm.uvm import cache_sets, slot_bytes, uvm_required_bytes
from systems.features import Group
from systems.freq_cache import sizing
from systems.freq_cache.sizing import CacheSpec
from systems.registry import Variant
from workloads.batch import Workload

_ID_BYTES = 8
CACHING = frozenset({"freq_cache", "fbgemm_uvm_caching", "torchrec_uvm_caching"})
"""Systems whose number of slots is a choice, and whose bytes follow from it."""
UVM = frozenset({"fbgemm_uvm", "torchrec_uvm"})
RESIDENT = frozenset({"full_gpu", "reference"})


class Shape(Model):
    """The model around the tables: its bytes and flops follow from these."""

    tables: int = Field(ge=1)
    embedding_dim: int
    batch_size: int = Field(ge=1)
    dense_columns: int = Field(ge=1)
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    optimizer: str
    device: Literal["cpu", "cuda"]

    @classmethod
    def of(cls, cell: Cell, workload: Workload) -> Self:
        """The shape of a cell, whose workload is `workload`."""
        own = {name: getattr(cell, name) for name in cls.model_fields if name in Cell.model_fields}
        return cls(tables=len(workload.tables), dense_columns=workload.dense_columns, **own)

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of every linear layer, the bottom MLP's first."""
        features = self.tables + 1
        interacted = self.embedding_dim + features * (features - 1) // 2
        bottom = (self.dense_columns, *self.bottom_mlp, self.embedding_dim)
        return (*pairwise(bottom), *pairwise((interacted, *self.top_mlp)))

    @property
    def dense_flops(self) -> float:
        """Multiplications and additions of a step in matrix products: forward, and twice that in backward.

        Nobody wants the gradient of the dense columns, so the first layer has one product less.
        """
        linear = sum(inputs * outputs for inputs, outputs in self.layers)
        interaction = (self.tables + 1) ** 2 * self.embedding_dim
        first_inputs, first_outputs = self.layers[0]
        return 2.0 * self.batch_size * (3 * (linear + interaction) - first_inputs * first_outputs)

    @property
    def dense_parameters(self) -> int:
        """Weights and biases of both MLPs."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    @property
    def activation_values(self) -> int:
        """Values that forward leaves for backward: pooled rows, their products, the output of every layer."""
        features = self.tables + 1
        return self.batch_size * (features * self.embedding_dim + features**2 + sum(out for _, out in self.layers))

    @property
    def peak_values(self) -> int:
        """Values of activations and gradients on the device when a step has most of them.

        Forward has most in the top MLP: dense and pooled vectors joined, the pooled ones by themselves, which the model
        holds until it returns, and what layers put out, of the layer at work before and after its ReLU. Backward has
        most behind the products of vectors: the joined ones, the gradient of each factor, that of the products, and
        the gradients of the parameters.
        """
        vectors, dim = self.tables + 1, self.embedding_dim
        joined, interacted = vectors * dim, dim + vectors * (vectors - 1) // 2
        throughout = sum(self.bottom_mlp) + dim + interacted
        top = max(done + out for done, out in zip(accumulate(self.top_mlp), self.top_mlp, strict=True))
        forward = throughout + joined + self.tables * dim + top
        backward = throughout + 3 * joined + vectors * vectors
        return max(self.batch_size * forward, self.batch_size * backward + self.dense_parameters)

    @property
    def model_bytes(self) -> int:
        """Device memory of the dense part at its peak: parameters, optimizer state, activations and gradients."""
        states = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 1, "adam": 2}[self.optimizer]
        return 4 * ((1 + states) * self.dense_parameters + self.peak_values)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A system variant in a setting.

    `batch_lookups` is the most ids of a batch; `budget` that of the cache: a share of the rows, or bytes of the device
    for the embeddings.
    """

    system: str
    shape: Shape
    tables: tuple[tuple[str, int], ...]
    batch_lookups: int
    budget: Budget

    @classmethod
    def of(cls, cell: Cell, workload: Workload) -> Self:
        """The case of a cell, whose workload is `workload`."""
        budget = cell.device_budget_bytes
        return cls(
            system=cell.system,
            shape=Shape.of(cell, workload),
            tables=workload.tables,
            batch_lookups=workload.batch_lookups,
            budget=CacheRatio(ratio=cell.cache_ratio or 1.0) if budget is None else DeviceBytes(total_bytes=budget),
        )

    @cached_property
    def _variant(self) -> Variant:
        return Variant.parse(self.system)

    @property
    def name(self) -> str:
        """The system without its parameters."""
        return self._variant.name

    @property
    def system_class(self) -> type[EmbeddingSystem]:
        """The system.

        Raises:
            UnknownSystem: there is no such system or variant.
            ImportError: what it needs is not installed.
        """
        return registry.load(self._variant)

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Parameters of the variant, defaults filled in."""
        return registry.resolved_parameters(self._variant, self.system_class)

    @property
    def caches(self) -> bool:
        """Whether it has a cache of `CACHING` here: fbgemm has none on a CPU."""
        return self.name == "freq_cache" or (self.name in CACHING and self.shape.device == "cuda")

    @cached_property
    def spec(self) -> SystemSpec:
        """The spec that the system is built from; frequencies are left empty."""
        return SystemSpec(
            tables=tables_of(self.tables, self.shape.embedding_dim),
            optimizer=SparseOptimizer(kind=OptimizerKind(self.shape.optimizer), lr=1.0),
            device=torch.device(self.shape.device),
            budget=self.budget,
            batch_lookups=self.batch_lookups,
            frequencies={},
            parameters=self.parameters,
        )

    @cached_property
    def support(self) -> Support:
        """The system's own answer; slots of a system that `CACHING` lacks are not modelled."""
        if self.name not in CACHING and self.system_class.slots is not EmbeddingSystem.slots:
            reason = f"what {self.name} takes at each size has no model here: run_bench.py measures it"
            return Support(Verdict.UNSUPPORTED, reason)
        return self.system_class.support(self.spec)

    @property
    def group(self) -> Group:
        """The tables as our cache takes them: alike as they are, they share one."""
        (group,) = sizing.groups_of(CacheSpec.of(self.spec)).groups
        return group

    @cached_property
    def slots(self) -> int:
        """Rows that it may cache; 0 without a cache, or if the budget is too small."""
        if not self.caches or self.support.verdict is not Verdict.YES:
            return 0
        if self.name == "freq_cache":
            return sizing.slots_of(CacheSpec.of(self.spec), self.group)
        return WAYS * cache_sets(self.spec, self.spec.tables)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return 4 * self.shape.embedding_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of a row's optimizer state."""
        return self.spec.optimizer.state_bytes(self.shape.embedding_dim)

    @property
    def record_bytes(self) -> int:
        """Bytes of a row with its optimizer state."""
        return self.row_bytes + self.state_bytes

    @property
    def host_bytes(self) -> int:
        """Host memory of rows, state and index; rows that compute where they lie are counted as the device's."""
        if "all rows" in self.device_bytes:
            return 0
        return self.system_class.required_bytes(self.spec).get(Tier.HOST, 0)

    @cached_property
    def device_bytes(self) -> dict[str, int]:
        """Device memory by purpose, the model included. On a CPU the device is the memory that computes."""
        sizes = self._embedding_bytes() | self.beside_bytes
        return {name: size for name, size in sizes.items() if size}

    @property
    def beside_bytes(self) -> dict[str, int]:
        """Device memory of all but the embeddings: the model, and ids that lie there, of this batch and the next."""
        ids = 0
        if self.shape.device == "cuda" and not self.system_class.ids_on_host:
            bags = self.shape.batch_size * self.shape.tables
            ids = 2 * _ID_BYTES * (self.batch_lookups + 2 * bags)  # with lengths and offsets of bags
        return {"model and activations": self.shape.model_bytes, "ids of two batches": ids}

    def _embedding_bytes(self) -> dict[str, int]:
        spec = self.spec
        if self.name in RESIDENT or (self.shape.device == "cpu" and self.name in UVM | CACHING and not self.caches):
            return {"all rows": spec.row_bytes, "optimizer state of all rows": spec.state_bytes}
        if self.name == "freq_cache":
            cached = self.slots * self.record_bytes
            return {
                "cached rows": cached,
                "staging": sizing.device_bytes(CacheSpec.of(spec), self.group, self.slots) - cached,
                "slots of the ids of a batch": sizing.SLOT_ID_BYTES * spec.batch_lookups,
            }
        if self.name in CACHING:
            slot, least = slot_bytes(spec, spec.tables), uvm_required_bytes(spec, caching=True)[Tier.DEVICE]
            return {"cached rows": self.slots * slot, "index and row-wise state of all rows": least - WAYS * slot}
        if self.name in UVM:
            return {"row-wise state of all rows": uvm_required_bytes(spec)[Tier.DEVICE]}
        return {"what the system says it needs": self.system_class.required_bytes(spec).get(Tier.DEVICE, 0)}
