"""What a system is: the contract every way of keeping embedding tables implements.

A system is an `nn.Module` that stands where torchrec's `EmbeddingBagCollection` would stand in a model: a
`KeyedJaggedTensor` goes in, a `KeyedTensor` comes out, and the sparse optimizer runs inside backward. It knows no
dataset and no harness, and it never reports its own speed.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor, PoolingType


class OptimizerKind(enum.StrEnum):
    """The sparse optimizers of the comparison."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAM = "adam"


@dataclass(frozen=True, kw_only=True)
class SparseOptimizer:
    """A sparse optimizer with every hyper-parameter explicit: library defaults differ between versions.

    Row-wise Adagrad is fbgemm's: `state += mean(g * g); row -= lr * g / (sqrt(state) + eps)`, `g` being a row's
    gradient summed over the batch.
    """

    kind: OptimizerKind
    lr: float
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999

    def state_shapes(self, dim: int) -> dict[str, int]:
        """fp32 elements that one row of width `dim` carries, by state name."""
        match self.kind:
            case OptimizerKind.SGD:
                return {}
            case OptimizerKind.ROWWISE_ADAGRAD:
                return {"sum": 1}
            case OptimizerKind.ADAM:
                return {"exp_avg": dim, "exp_avg_sq": dim}

    def state_bytes(self, dim: int) -> int:
        """Bytes of optimizer state that one row of width `dim` carries."""
        return 4 * sum(self.state_shapes(dim).values())


@dataclass(frozen=True, kw_only=True)
class CacheRatio:
    """Cache size as a share of all rows, as papers state it. Not equal memory: see `DeviceBytes`."""

    ratio: float

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"cache ratio {self.ratio} is outside (0, 1]")


@dataclass(frozen=True, kw_only=True)
class DeviceBytes:
    """Cache size by equal bytes: rows, optimizer state, index and staging on the device fit `total_bytes`."""

    total_bytes: int

    def __post_init__(self) -> None:
        if self.total_bytes <= 0:
            raise ValueError(f"device budget of {self.total_bytes} bytes is not positive")


Budget = CacheRatio | DeviceBytes


@dataclass(frozen=True, kw_only=True)
class SystemSpec:
    """Everything a system is built from.

    Attributes:
        tables: The tables. Their order fixes the order of features in the output.
        optimizer: Applied inside backward.
        device: Where lookups compute: `cpu` or `cuda`.
        budget: How much of the device the system may use. Systems without a cache ignore a ratio.
        batch_lookups: Ids per batch over all features, an upper bound; sizes staging buffers and bounds working sets.
        frequencies: Accesses per row in the training split, by table name, int64 `[rows]`. None: unknown.
        parameters: The variant: values of the parameters that the system's class declares.
    """

    tables: tuple[EmbeddingBagConfig, ...]
    optimizer: SparseOptimizer
    device: torch.device
    budget: Budget
    batch_lookups: int
    frequencies: Mapping[str, Tensor] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_tables(self.tables)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.num_embeddings for table in self.tables)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows, fp32, without optimizer state."""
        return sum(4 * table.num_embeddings * table.embedding_dim for table in self.tables)

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer state of all rows."""
        return sum(t.num_embeddings * self.optimizer.state_bytes(t.embedding_dim) for t in self.tables)


class Verdict(enum.StrEnum):
    """What a system says of a setting before anything is built."""

    YES = "yes"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class Support:
    """A verdict with its reason: what is missing, and the remedy (what to install, the smallest budget that works)."""

    verdict: Verdict = Verdict.YES
    reason: str = ""


class Tier(enum.StrEnum):
    """Where bytes live. On a CPU `device` is the RAM that plays the device's part."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class Purpose(enum.StrEnum):
    """What bytes are for."""

    ROWS = "rows"
    STATE = "state"
    INDEX = "index"
    STAGING = "staging"


Anatomy = dict[tuple[Tier, Purpose], int]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the rows of a system live, read off its live objects.

    Attributes:
        label: A short text for the table, e.g. `device`, `uvm (host-mapped)`, `host-resident`.
        offloads: Rows live in a slower tier than the one that computes. Only such systems enter an offload ranking,
            beside the all-on-device baseline.
    """

    label: str
    offloads: bool


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Traffic since the last reset. None: not known for this system on this device.

    Attributes:
        steps: Batches counted.
        lookups: Ids looked up.
        unique_ids: Distinct rows per batch, summed over batches.
        unique_misses: Of these, the rows absent from the device when the batch arrived, before anything was fetched.
        lookup_misses: Ids whose row was absent when the batch arrived, duplicates counted.
        rows_fetched, rows_written_back: Rows moved to and from the device.
        bytes_fetched, bytes_written_back: The same in bytes, optimizer state included.
        overflow_batches: Batches with more distinct rows than the cache has slots.
        per_table: Unique ids and unique misses by table name, where known.
    """

    steps: int
    lookups: int | None = None
    unique_ids: int | None = None
    unique_misses: int | None = None
    lookup_misses: int | None = None
    rows_fetched: int | None = None
    rows_written_back: int | None = None
    bytes_fetched: int | None = None
    bytes_written_back: int | None = None
    overflow_batches: int = 0
    per_table: Mapping[str, tuple[int, int]] | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of one table: weights fp32 `[n, dim]` and optimizer state by name, `[n]` or `[n, dim]`, on the host."""

    weights: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)


class WorkingSetTooLarge(ValueError):
    """One batch needs more of the device than the budget allows; the message names the smallest budget that works."""


class EmbeddingSystem(nn.Module, ABC):
    """One way of keeping embedding tables.

    To write: `required_bytes`, `placement`, `forward`, `load_rows`, `read_rows`, `memory`, `counters` and
    `reset_counters`; where there is a cache also `flush`, where it looks ahead `look_ahead` and `prefetch`. What the
    harness times is `forward` with its backward, and `prefetch`; they must not synchronise the device for the sake of
    statistics. A system owns its rows: `parameters()` must not show them, or a dense optimizer would update them too.
    """

    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Allowed values by parameter name, the default first."""

    ids_on_host: ClassVar[bool] = False
    """Whether `forward` and `prefetch` want their features on the host (a host-side planner) or on the device."""

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__()
        answer = self.support(spec)
        if answer.verdict is not Verdict.YES:
            raise ValueError(f"{type(self).__name__} cannot be built: {answer.reason}")
        self.spec = spec
        self.tables = {table.name: table for table in spec.tables}

    @classmethod
    @abstractmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        """The least bytes by tier that this setting needs, from the spec alone. Raises nothing, builds nothing."""

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        """Whether this setting can run, cheaply and without building anything.

        The default refuses a device budget below what `required_bytes` asks of the device.
        """
        needed = cls.required_bytes(spec).get(Tier.DEVICE, 0)
        if isinstance(spec.budget, DeviceBytes) and needed > spec.budget.total_bytes:
            return Support(
                Verdict.INFEASIBLE,
                f"a device budget of {spec.budget.total_bytes:,} bytes is too small: the smallest that works is "
                f"{needed:,} bytes ({needed / 2**30:.3f} GiB)",
            )
        return Support()

    @property
    def look_ahead(self) -> int:
        """How many coming batches `prefetch` may announce; 0: none."""
        return 0

    @property
    @abstractmethod
    def placement(self) -> Placement:
        """Where the rows live, read off the live objects."""

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The tables, as torchrec's models ask for them."""
        return list(self.spec.tables)

    def is_weighted(self) -> bool:
        """Whether features carry per-sample weights. None of the systems takes them yet."""
        return False

    @abstractmethod
    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pool the rows of a batch.

        Args:
            features: Row ids of every feature of every table, in any key order; values int64, on the host if
                `ids_on_host`, else on the device.

        Returns:
            Pooled embeddings, fp32 `[batch, sum of dims]` on the device, keyed by feature in table order. Backward
            through it applies the sparse update.

        Raises:
            IndexError, RuntimeError: an id is outside its table; the latter where a kernel finds out (on CUDA
                asynchronously, as a device assertion).
            WorkingSetTooLarge: the batch cannot be served within the budget.
        """

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a coming batch. Called in order, each batch once, before its own `forward`."""

    @abstractmethod
    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        """Overwrite rows `start, start + 1, ...` of a table; state that `rows` does not name becomes zero.

        Raises:
            IndexError: the rows reach outside the table.
            ValueError: the rows have another width, or their state another shape, than the table.
        """

    @abstractmethod
    def read_rows(self, table: str, ids: Tensor) -> Rows:
        """Copies of the rows `ids` (int64 `[n]`) of a table, up to date whatever is cached.

        Raises:
            IndexError: an id is outside the table.
        """

    def optimizer_steps(self, table: str) -> int:
        """Updates of a table so far, on which Adam's bias correction depends. Systems that have Adam override this."""
        return 0

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        """Go on as if a table had been updated `steps` times. Systems that have Adam override this."""

    def flush(self) -> None:
        """Write back everything changed: after it the host copy is the truth."""

    @abstractmethod
    def memory(self) -> Anatomy:
        """Bytes by tier and purpose, from the sizes of live tensors."""

    @abstractmethod
    def counters(self) -> Counters:
        """Traffic since the last reset."""

    @abstractmethod
    def reset_counters(self) -> None:
        """Start counting anew."""

    def count_traffic(self, enabled: bool) -> None:
        """Switch counting that costs time. The harness leaves it off while it times; cheap counters may ignore it."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.flush()
        for name, table in self.tables.items():
            rows = self.read_rows(name, torch.arange(table.num_embeddings))
            destination[f"{prefix}embedding_bags.{name}.weight"] = rows.weights
            for state, value in rows.state.items():
                destination[f"{prefix}embedding_bags.{name}.{state}"] = value
            if self.spec.optimizer.kind is OptimizerKind.ADAM:
                destination[f"{prefix}embedding_bags.{name}.step"] = torch.tensor(self.optimizer_steps(name))

    def _load_from_state_dict(  # noqa: PLR0917 - torch's signature
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        expected: set[str] = set()
        for name, table in self.tables.items():
            keys = {entry: f"{prefix}embedding_bags.{name}.{entry}" for entry in self._entries(table)}
            expected.update(keys.values())
            absent = [key for key in keys.values() if key not in state_dict]
            if absent:
                missing_keys.extend(absent)
                continue
            wrong = [
                f"{key} has shape {tuple(state_dict[key].shape)}, table {name} wants {self._shape_of(table, entry)}"
                for entry, key in keys.items()
                if tuple(state_dict[key].shape) != self._shape_of(table, entry)
            ]
            if wrong:
                error_msgs.extend(wrong)
                continue
            values = {entry: state_dict[key] for entry, key in keys.items()}
            weights, step = values.pop("weight"), values.pop("step", None)
            self.load_rows(name, 0, Rows(weights, values))
            if step is not None:
                self.set_optimizer_steps(name, int(step))
        if strict:
            unexpected_keys.extend(k for k in state_dict if k.startswith(prefix) and k not in expected)

    def check_rows(self, name: str, start: int, rows: Rows) -> None:
        """What `load_rows` refuses; slices would clip, and copies broadcast, without a word."""
        table, count = self.tables[name], rows.weights.shape[0]
        if not 0 <= start <= start + count <= table.num_embeddings:
            raise IndexError(
                f"rows {start} to {start + count - 1} are not all in table {name} of {table.num_embeddings}"
            )
        for entry, values in {"weight": rows.weights, **rows.state}.items():
            wanted = (count, *self._shape_of(table, entry)[1:])
            if tuple(values.shape) != wanted:
                raise ValueError(f"table {name} wants {entry} of shape {wanted}, not {tuple(values.shape)}")

    def _entries(self, table: EmbeddingBagConfig) -> list[str]:
        """What a saved table consists of."""
        step = ["step"] if self.spec.optimizer.kind is OptimizerKind.ADAM else []
        return ["weight", *self.spec.optimizer.state_shapes(table.embedding_dim), *step]

    def _shape_of(self, table: EmbeddingBagConfig, entry: str) -> tuple[int, ...]:
        if entry == "step":
            return ()
        width = {"weight": table.embedding_dim, **self.spec.optimizer.state_shapes(table.embedding_dim)}[entry]
        return (table.num_embeddings,) if width == 1 else (table.num_embeddings, width)


def check_tables(tables: Sequence[EmbeddingBagConfig]) -> None:
    """Refuse tables that some system would silently get wrong.

    Raises:
        ValueError: no table, a duplicate table or feature name, no row, a width that is not a multiple of 4 (fbgemm's
            kernels need that), rows other than fp32, or a pooling other than sum and mean.
    """
    if not tables:
        raise ValueError("no tables: give at least one EmbeddingBagConfig")
    names = [table.name for table in tables]
    features = [name for table in tables for name in table.feature_names]
    for kind, seen in (("table", names), ("feature", features)):
        twice = sorted({name for name in seen if seen.count(name) > 1})
        if twice:
            raise ValueError(f"{kind} name used twice: {', '.join(twice)}")
    for table in tables:
        if not table.feature_names:
            raise ValueError(f"table {table.name} serves no feature")
        if table.num_embeddings < 1:
            raise ValueError(f"table {table.name} has {table.num_embeddings} rows")
        if table.embedding_dim < 4 or table.embedding_dim % 4:
            raise ValueError(f"table {table.name}: embedding_dim {table.embedding_dim} is not a multiple of 4")
        if table.data_type.value != "FP32":
            raise ValueError(f"table {table.name}: rows of {table.data_type.value} are not supported, use FP32")
        if table.pooling not in (PoolingType.SUM, PoolingType.MEAN):
            raise ValueError(f"table {table.name}: pooling {table.pooling.value} is not supported, use SUM or MEAN")
