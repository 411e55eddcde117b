"""A system variant with a budget on the tables of a workload, and the bytes it needs on device and host."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch

from suite.records.record import Cell
from suite.run.cell.training import tables_of
from systems import registry
from systems.contract import (
    Budget,
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
from systems.freq_cache import sizing
from systems.freq_cache.sizing import CacheSpec
from systems.registry import Variant
from workloads.batch import Workload

_ID_BYTES = 8
_STATES = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 1, "adam": 2}
"""Values that the dense optimizer keeps for each parameter."""
CACHING = frozenset({"freq_cache", "fbgemm_uvm_caching", "torchrec_uvm_caching"})
"""Systems whose number of slots is a choice, and whose bytes follow from it."""
UVM = frozenset({"fbgemm_uvm", "torchrec_uvm"})
RESIDENT = frozenset({"full_gpu", "reference"})


@dataclass(frozen=True, kw_only=True)
class Case:
    """The setting of a cell, of which rounds, steps and cache size do not matter, with its workload.

    `budget` is a share of the rows, or bytes of the device for the embeddings.
    """

    cell: Cell
    workload: Workload
    budget: Budget

    @cached_property
    def _variant(self) -> Variant:
        return Variant.parse(self.cell.system)

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

    @property
    def caches(self) -> bool:
        """Whether it has a cache of `CACHING` here: fbgemm has none on a CPU."""
        return self.name == "freq_cache" or (self.name in CACHING and self.cell.device == "cuda")

    @cached_property
    def spec(self) -> SystemSpec:
        """The spec that the system is built from; frequencies are left empty."""
        return SystemSpec(
            tables=tables_of(self.workload.tables, self.cell.embedding_dim),
            optimizer=SparseOptimizer(kind=OptimizerKind(self.cell.optimizer), lr=1.0),
            device=torch.device(self.cell.device),
            budget=self.budget,
            batch_lookups=self.workload.batch_lookups,
            frequencies={},
            parameters=registry.resolved_parameters(self._variant, self.system_class),
        )

    @cached_property
    def support(self) -> Support:
        """The system's own answer; slots of a system that `CACHING` lacks are not modelled."""
        if self.name not in CACHING and self.system_class.slots is not EmbeddingSystem.slots:
            reason = f"what {self.name} takes at each size has no model here: run_bench.py measures it"
            return Support(Verdict.UNSUPPORTED, reason)
        return self.system_class.support(self.spec)

    @cached_property
    def slots(self) -> int:
        """Rows that it may cache; 0 without a cache, or if the budget is too small."""
        if not self.caches or self.support.verdict is not Verdict.YES:
            return 0
        if self.name == "freq_cache":
            own = CacheSpec.of(self.spec)
            (group,) = sizing.groups_of(own).groups  # tables alike share one cache
            return sizing.slots_of(own, group)
        return WAYS * cache_sets(self.spec)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return 4 * self.cell.embedding_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of a row's optimizer state."""
        return self.spec.optimizer.state_bytes(self.cell.embedding_dim)

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
        """Device memory of all but the embeddings: the model at its peak, and ids of batches that lie there."""
        parameters, ids = self.dense_parameters, 0
        if self.cell.device == "cuda" and not self.system_class.ids_on_host:
            bags = self.cell.batch_size * len(self.workload.tables)
            batches = 3 if getattr(self.system_class, "pipelined", False) else 2  # distributed a step ahead, or not
            ids = batches * _ID_BYTES * (self.workload.batch_lookups + 2 * bags)  # with lengths and offsets of bags
        model = 4 * ((1 + _STATES[self.cell.optimizer]) * parameters + self.peak_values)
        return {"model and activations": model, "ids of batches": ids}

    def _embedding_bytes(self) -> dict[str, int]:
        spec = self.spec
        if self.name in RESIDENT or (self.cell.device == "cpu" and self.name in UVM | CACHING and not self.caches):
            return {"all rows": spec.row_bytes, "optimizer state of all rows": spec.state_bytes}
        if self.name == "freq_cache":
            own, cached = CacheSpec.of(spec), self.slots * (self.row_bytes + self.state_bytes)
            (group,) = sizing.groups_of(own).groups
            return {
                "cached rows": cached,
                "staging": sizing.device_bytes(own, group, self.slots) - cached,
                "slots of the ids of a batch": sizing.SLOT_ID_BYTES * spec.batch_lookups,
            }
        if self.name in CACHING:
            slot, least = slot_bytes(spec), uvm_required_bytes(spec, caching=True)[Tier.DEVICE]
            return {"cached rows": self.slots * slot, "index and row-wise state of all rows": least - WAYS * slot}
        if self.name in UVM:
            return {"row-wise state of all rows": uvm_required_bytes(spec)[Tier.DEVICE]}
        return {"what the system says it needs": self.system_class.required_bytes(spec).get(Tier.DEVICE, 0)}

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of every linear layer of the model, the bottom MLP's first."""
        features, dim = len(self.workload.tables) + 1, self.cell.embedding_dim
        interacted = dim + features * (features - 1) // 2
        bottom = (self.workload.dense_columns, *self.cell.bottom_mlp, dim)
        return (*pairwise(bottom), *pairwise((interacted, *self.cell.top_mlp)))

    @property
    def dense_flops(self) -> float:
        """Multiplications and additions of a step in matrix products: forward, and twice that in backward.

        Nobody wants the gradient of the dense columns, so the first layer has one product less.
        """
        linear = sum(inputs * outputs for inputs, outputs in self.layers)
        interaction = (len(self.workload.tables) + 1) ** 2 * self.cell.embedding_dim
        first_inputs, first_outputs = self.layers[0]
        return 2.0 * self.cell.batch_size * (3 * (linear + interaction) - first_inputs * first_outputs)

    @property
    def dense_parameters(self) -> int:
        """Weights and biases of both MLPs."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    @property
    def activation_values(self) -> int:
        """Values that forward leaves for backward: pooled rows, their products, the output of every layer."""
        features, outputs = len(self.workload.tables) + 1, sum(out for _, out in self.layers)
        return self.cell.batch_size * (features * self.cell.embedding_dim + features**2 + outputs)

    @property
    def peak_values(self) -> int:
        """Values of activations and gradients on the device when a step has most of them.

        Forward has most in the top MLP: dense and pooled vectors joined, the pooled ones by themselves, which the model
        holds until it returns, and what layers put out, of the layer at work before and after its ReLU. Backward has
        most behind the products of vectors: the joined ones, the gradient of each factor, that of the products, and
        the gradients of the parameters.
        """
        cell, vectors, dim = self.cell, len(self.workload.tables) + 1, self.cell.embedding_dim
        joined, interacted = vectors * dim, dim + vectors * (vectors - 1) // 2
        throughout = sum(cell.bottom_mlp) + dim + interacted
        top = max(done + out for done, out in zip(accumulate(cell.top_mlp), cell.top_mlp, strict=True))
        forward = throughout + joined + len(self.workload.tables) * dim + top
        backward = throughout + 3 * joined + vectors * vectors
        return max(cell.batch_size * forward, cell.batch_size * backward + self.dense_parameters)
