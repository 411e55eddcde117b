"""The specification of a system: tables, an optimizer, a device and a budget."""

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_configs import data_type_to_dtype
from torchrec.types import DataType

if TYPE_CHECKING:
    from systems.contract import EmbeddingSystem

_MOST = float(np.finfo(np.float32).max)


def check_hyper_parameters(values: Mapping[str, float]) -> None:
    """Refuse hyper-parameters that would make rows non-finite or wrong.

    Raises:
        TypeError: one is not a number; the message names it.
        ValueError: one is below 0, too large for fp32 or NaN; the message names it.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number | Tensor):
            raise TypeError(f"{name} is a number, not {type(value).__name__} {value!r}")
        below = 1.0 if name in {"beta1", "beta2"} else _MOST
        if not (0 <= value < below or (name == "max_gradient" and value == math.inf)):
            raise ValueError(f"{name} of {float(value)} would spoil the rows: give a number from 0 to below {below:g}")


class OptimizerKind(enum.StrEnum):
    """The sparse optimizers of the comparison."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"


@dataclass(frozen=True, kw_only=True)
class SparseOptimizer:
    """A sparse optimizer with every hyper-parameter explicit: library defaults differ between versions.

    Row-wise Adagrad is fbgemm's: `state += mean(g * g); row -= lr * g / (sqrt(state) + eps)`, `g` being a row's
    gradient summed over the batch; its state is one number per row. Adagrad has one number per element, with
    `state += g * g` and the same update.

    Attributes:
        weight_decay: Row-wise Adagrad adds `weight_decay * row` to the gradient, Adam decays as `torch.optim.AdamW`
            does; rows that are not in a batch are not decayed.
        max_gradient: Maximum magnitude of an element of the pooled output's gradient; larger ones are clipped to it.
    """

    kind: OptimizerKind
    lr: float
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    max_gradient: float = math.inf

    def __post_init__(self) -> None:
        """Round the learning rate to fp32: some kernels keep it in fp32, others in fp64, and all must train alike.

        Raises:
            TypeError, ValueError: as `check_hyper_parameters`.
        """
        check_hyper_parameters({field.name: getattr(self, field.name) for field in fields(self)[1:]})
        object.__setattr__(self, "lr", float(np.float32(self.lr)))

    def state_shapes(self, dim: int) -> dict[str, int]:
        """fp32 elements that one row of width `dim` carries, by state name."""
        return {
            OptimizerKind.SGD: {},
            OptimizerKind.ROWWISE_ADAGRAD: {"sum": 1},
            OptimizerKind.ADAGRAD: {"sum": dim},
            OptimizerKind.ADAM: {"exp_avg": dim, "exp_avg_sq": dim},
        }[self.kind]

    def zero_state(self, rows: int, dim: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """State of rows that were never updated, fp32 by name: `[rows]` where a row has one number, or `[rows, n]`."""
        shapes = self.state_shapes(dim).items()
        return {name: torch.zeros(rows if n == 1 else (rows, n), device=device) for name, n in shapes}

    def state_bytes(self, dim: int) -> int:
        """Bytes of optimizer state that one row of width `dim` carries."""
        return 4 * sum(self.state_shapes(dim).values())

    def step(self, gradient: Tensor, state: Mapping[str, Tensor], updates: int) -> Tensor:
        """Step that one update subtracts from rows, fp64 `[n, dim]`, written out in plain torch.

        `gradient`: of the rows, each summed over the batch, fp32 `[n, dim]`. `state`: theirs, which is updated in
        place. `updates`: number of this update, from 1 on. Weight decay and clipping are left out.
        """
        match self.kind:
            case OptimizerKind.SGD:
                return self.lr * gradient.double()
            case OptimizerKind.ROWWISE_ADAGRAD:
                total = state["sum"].add_(gradient.square().mean(dim=1))
                return (self.lr / (total.sqrt() + self.eps)).unsqueeze(1) * gradient.double()
            case OptimizerKind.ADAGRAD:
                total = state["sum"].add_(gradient.square())
                return (self.lr * gradient / (total.sqrt() + self.eps)).double()
            case OptimizerKind.ADAM:
                first = state["exp_avg"].lerp_(gradient, 1 - self.beta1)
                second = state["exp_avg_sq"].mul_(self.beta2).add_((1 - self.beta2) * gradient.square())
                scale = (second / (1 - self.beta2**updates)).sqrt() + self.eps
                return self.lr * (first / (1 - self.beta1**updates) / scale).double()


@dataclass(frozen=True, kw_only=True)
class CacheRatio:
    """Cache size as a share of all rows, as papers state it. Not equal memory: see `DeviceBytes`.

    `ram_ratio` is the share that a level of RAM above a drive has room for, in a system with levels.
    """

    ratio: float
    ram_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"cache ratio {self.ratio} is outside (0, 1]")


@dataclass(frozen=True, kw_only=True)
class _Bytes:
    total_bytes: int

    def __post_init__(self) -> None:
        if self.total_bytes <= 0:
            raise ValueError(f"a budget of {self.total_bytes} bytes is not positive")


class DeviceBytes(_Bytes):
    """Cache size by equal bytes: rows, optimizer state, index and staging on the device fit `total_bytes`."""


@dataclass(frozen=True, kw_only=True)
class HostBytes(_Bytes):
    """Memory for rows on a drive: all of the system's memory fits `total_bytes`, the page cache of its files included.

    `device_bytes` of it play a device, in which a system with levels has its slots and staging. None: no part does.

    That is slots, policy, index, map of the file, caches of a library and staging. The caller enforces the limit, with
    a memory control group for example; a system that manages its memory itself plans to stay below.
    """

    device_bytes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device_bytes is not None and not 0 < self.device_bytes < self.total_bytes:
            raise ValueError(f"of {self.total_bytes} bytes of memory {self.device_bytes} cannot play a device")


Budget = CacheRatio | DeviceBytes | HostBytes


@dataclass(frozen=True, kw_only=True)
class SystemSpec:
    """Everything a system is built from.

    Attributes:
        tables: The tables. Their order fixes the order of features in the output; each keeps its rows in its own
            `data_type`.
        optimizer: Applied inside backward.
        table_optimizers: Optimizers of single tables, by name: the same kind with other hyper-parameters.
        device: Where lookups compute: `cpu` or `cuda`.
        budget: How much of the device the system may use. Systems without a cache ignore a ratio.
        batch_lookups: Ids per batch over all features, an upper bound; sizes staging buffers and bounds working sets.
        frequencies: Accesses per row in the training split, by table name, int64 `[rows]`. None: unknown.
        weighted: Every batch carries a weight per id, by which the id's row is multiplied before pooling.
        parameters: The variant: values of the parameters that the system's class declares.

    Raises:
        ValueError: no table, a duplicate table name, no feature, row or column, or rows other than fp32 and fp16.
    """

    tables: tuple[EmbeddingBagConfig, ...]
    optimizer: SparseOptimizer
    device: torch.device
    budget: Budget
    batch_lookups: int
    frequencies: Mapping[str, Tensor] | None = None
    weighted: bool = False
    table_optimizers: Mapping[str, SparseOptimizer] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("no tables: give at least one EmbeddingBagConfig")
        if twice := _twice([table.name for table in self.tables]):
            raise ValueError(f"table name used twice: {twice}")
        for table in self.tables:
            if not table.feature_names:
                raise ValueError(f"table {table.name} serves no feature")
            if min(table.num_embeddings, table.embedding_dim) < 1:
                raise ValueError(f"table {table.name} has {table.num_embeddings} rows of width {table.embedding_dim}")
            if table.data_type not in (DataType.FP32, DataType.FP16):
                kept = table.data_type.value
                raise ValueError(f"table {table.name}: rows of {kept} are not supported, use FP32 or FP16")

    @property
    def rows(self) -> int:
        return sum(table.num_embeddings for table in self.tables)

    def optimizer_of(self, table: EmbeddingBagConfig) -> SparseOptimizer:
        return self.table_optimizers.get(table.name, self.optimizer)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows, without optimizer state."""
        return sum(table.num_embeddings * row_bytes_of(table) for table in self.tables)

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes; a ratio is a share of the bytes of all rows with their state."""
        if isinstance(self.budget, CacheRatio):
            return int(self.budget.ratio * (self.row_bytes + self.state_bytes))
        return self.budget.total_bytes

    @property
    def state_bytes(self) -> int:
        return sum(t.num_embeddings * self.optimizer.state_bytes(t.embedding_dim) for t in self.tables)


def row_type_of(table: EmbeddingBagConfig) -> torch.dtype:
    """The type that a table's rows are kept in."""
    row_type: torch.dtype = data_type_to_dtype(table.data_type)
    return row_type


def row_bytes_of(table: EmbeddingBagConfig) -> int:
    """Bytes of one row of a table, without optimizer state."""
    dim: int = table.embedding_dim
    return dim * row_type_of(table).itemsize


def shape_of(table: EmbeddingBagConfig, entry: str, optimizer: SparseOptimizer) -> tuple[int, ...]:
    """Shape of a table's weight or of one of its states; a `ValueError` for any other name."""
    states = optimizer.state_shapes(4)
    if entry not in {"weight", *states}:
        kept = ", ".join(states) or "none"
        raise ValueError(f"table {table.name} has no state {entry}: those of its optimizer are {kept}")
    by_row = states.get(entry) == 1
    return (table.num_embeddings,) if by_row else (table.num_embeddings, table.embedding_dim)


def refusals_of(spec: SystemSpec, system: "type[EmbeddingSystem]") -> Iterator[str]:
    """Reasons for which a class does not support this device, these tables or this optimizer."""
    who = system.__name__
    if system.gpu_alternative and spec.device.type != "cpu":
        yield f"{who} computes on a CPU: take {system.gpu_alternative} on a GPU"
    if system.like_torchrec:
        others = [table.name for table in spec.tables if table.pooling is not PoolingType.SUM]
        if spec.weighted and others:
            yield (
                "per-sample weights go with SUM pooling only (torch refuses them with MEAN, fbgemm's backward is wrong "
                f"there): change the pooling of {', '.join(others)}, or give no weights"
            )
        return
    if spec.weighted:
        yield f"{who} takes no per-sample weights"
    if names := [table.name for table in spec.tables if table.data_type is not DataType.FP32]:
        yield f"{who} keeps rows in float32: change the data_type of {', '.join(names)}"
    if system.one_width and len({table.embedding_dim for table in spec.tables}) > 1:
        yield f"{who} takes tables of one width, as a DLRM has them: give all the same embedding_dim"
    if twice := _twice([name for table in spec.tables for name in table.feature_names]):
        yield f"{who} serves a feature from one table: used twice: {twice}"
    for table in spec.tables:
        if table.embedding_dim % 4:
            yield f"table {table.name}: embedding_dim {table.embedding_dim} is not a multiple of 4, as fbgemm wants"
        if table.pooling is not PoolingType.SUM:
            yield f"table {table.name}: {who} pools rows by their sum, use SUM"
    if spec.optimizer.weight_decay or spec.optimizer.max_gradient < math.inf or spec.table_optimizers:
        yield f"{who} has no weight decay, cuts no gradient and trains all tables alike: leave these as they are"


def _twice(names: Sequence[str]) -> str:
    """The names that occur more than once, joined by commas."""
    return ", ".join(sorted({name for name in names if names.count(name) > 1}))
