"""The interface that every embedding system implements.

A system is an `nn.Module` that replaces torchrec's `EmbeddingBagCollection`: it maps a `KeyedJaggedTensor` to a
`KeyedTensor`, and its sparse optimizer runs inside backward. It does not depend on datasets, the harness or timing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from systems.answers import (
    Counters,
    MemoryBreakdown,
    MemoryUse,
    Placement,
    Rows,
    Support,
    Tier,
    Verdict,
    WorkingSetTooLarge,
    knowledge,
)
from systems.spec import (
    Budget,
    CacheRatio,
    DeviceBytes,
    HostBytes,
    OptimizerKind,
    SparseOptimizer,
    SystemSpec,
    refusals_of,
    row_type_of,
    shape_of,
)

__all__ = [
    "Budget",
    "CacheRatio",
    "Counters",
    "DeviceBytes",
    "EmbeddingSystem",
    "HostBytes",
    "MemoryBreakdown",
    "MemoryUse",
    "OptimizerKind",
    "Placement",
    "Rows",
    "SparseOptimizer",
    "Support",
    "SystemSpec",
    "Tier",
    "Verdict",
    "WorkingSetTooLarge",
    "knowledge",
]


class EmbeddingSystem(nn.Module, ABC):
    """One way of keeping embedding tables.

    To write: `required_bytes`, `placement`, `forward`, `load_rows`, `read_rows`, `memory`, `counters` and
    `reset_counters`; where there is a cache also `slots` and `flush`, where it looks ahead `look_ahead` and `prefetch`,
    where its learning rate can change `set_learning_rate`. What the harness times is `forward` with its backward, and
    `prefetch`; they must not synchronise the device for the sake of statistics. A system owns its rows: `parameters()`
    must not show them, or a dense optimizer would update them too.
    """

    about: ClassVar[str] = ""
    """Where rows are and when that pays off, for people who choose a system: by default the docstring's first line."""

    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Allowed values by parameter name, the default first."""

    ids_on_host: ClassVar[bool] = False
    """Whether `forward` and `prefetch` take their features on the host (a host-side planner) or on the device."""

    rows_key: ClassVar[str] = "embedding_bags"
    """Prefix of the rows' names in a `state_dict`."""

    like_torchrec: ClassVar[bool] = False
    """Whether it takes all that torchrec's modules do: any width or pooling, fp16, shared features, weights, decay."""

    one_width: ClassVar[bool] = True
    """Whether all tables must be as wide as each other, as those of a DLRM are."""

    gpu_alternative: ClassVar[str] = ""
    """The system to take on a GPU, where this one computes on a CPU alone."""

    bypasses: ClassVar[bool] = True
    """Whether a missing row may be used without a slot, as fbgemm's cache does on a conflict."""

    shares_process: ClassVar[bool] = True
    """Whether it may be timed in one process with other systems; not where it patches a library."""

    plain_table: ClassVar[str] = "full_gpu"
    """The system that keeps all rows for the same kernel, without a cache."""

    keeps_rows_read: ClassVar[bool] = False
    """Whether rows on a drive stay in memory once `read_rows` has read them: in the page cache, or in a library's."""

    verified_rows: ClassVar[int] = 300
    """Maximum rows per table in verification: enough that the system treats the tables as it treats large ones."""

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 - as Python passes them
        super().__init_subclass__(**options)
        cls.about = vars(cls).get("about") or (cls.__doc__ or "").partition("\n")[0]

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
        """Minimum bytes by tier for this setting, computed from the spec alone. Raises nothing, builds nothing."""

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        """Whether this setting can run, cheaply and without building anything.

        Unsupported for the first of `refusals`, infeasible with a budget below the `required_bytes` of its tier.
        """
        if refusal := next(cls.refusals(spec), ""):
            return Support(Verdict.UNSUPPORTED, refusal)
        tier = Tier.HOST if isinstance(spec.budget, HostBytes) else Tier.DEVICE
        needed = 0 if isinstance(spec.budget, CacheRatio) else cls.required_bytes(spec).get(tier, 0)
        if needed <= spec.budget_bytes:
            return Support()
        smallest = f"the smallest that works is {needed:,} bytes ({needed / 2**30:.3f} GiB)"
        return Support(Verdict.INFEASIBLE, f"a {tier} budget of {spec.budget_bytes:,} bytes is too small: {smallest}")

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        """Reasons for which this setting is unsupported: those of the class attributes, behind any of a subclass."""
        yield from refusals_of(spec, cls)

    @property
    def look_ahead(self) -> int:
        """How many coming batches `prefetch` may announce; 0: none."""
        return 0

    @property
    def prior_knowledge(self) -> str:
        """Prior knowledge of the id stream: `nothing`, `the past`, `training frequencies, next batch`."""
        return knowledge(look_ahead=self.look_ahead)

    @property
    def busy_between_steps(self) -> bool:
        """Whether its threads or streams work between steps: in alternating timing that would slow other systems."""
        return self.look_ahead > 0

    @property
    def exact(self) -> bool:
        """Whether training ends with the same rows as plain training, up to the order of sums."""
        return True

    @property
    def sums_gradients(self) -> bool:
        """Whether a row's gradients are summed before it is updated, so that it is rounded once a batch."""
        return True

    @property
    def row_error(self) -> float:
        """Maximum error of an element after a round trip to the slow tier, relative to its row's largest magnitude."""
        return 0.0

    @classmethod
    def reference(cls, spec: SystemSpec) -> "EmbeddingSystem":
        """The plain system that this one is verified against, built for the same spec."""
        from systems.reference import ReferenceSystem  # it is a system itself

        return ReferenceSystem(spec)

    @property
    def slots(self) -> int:
        """Capacity of its cache in rows; 0: no cache. Misses are compared with the minimum at this capacity."""
        return 0

    @property
    @abstractmethod
    def placement(self) -> Placement:
        """Location of the rows, read from the live objects."""

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Configurations of the tables, by the method name that torchrec's models call."""
        return list(self.spec.tables)

    def is_weighted(self) -> bool:
        """Whether features carry per-sample weights."""
        return self.spec.weighted

    @abstractmethod
    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pool the rows of a batch.

        Args:
            features: Row ids of every feature of every table, in any key order; values int64, on the host if
                `ids_on_host`, else on the device. With a weighted spec, weights fp32, one per id, on the same side.

        Returns:
            Pooled embeddings, fp32 `[batch, sum of dims]` on the device, keyed by feature in table order. Backward
            through it applies the sparse update, and leaves a gradient at weights that ask for one.

        Raises:
            ValueError: a feature is missing, or there are weights and the spec is not weighted, or the reverse.
            IndexError, RuntimeError: an id is outside its table; on CUDA the latter, later, as a device assertion.
            WorkingSetTooLarge: the batch cannot be served within the budget.
        """

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a coming batch. Called in order, each batch once, before its own `forward`."""

    def prefetch_behind(self, features: KeyedJaggedTensor, arrived: torch.cuda.Event) -> None:
        """`prefetch` of ids on the device; a stream that reads them waits for the event `arrived` only."""
        self.prefetch(features)

    def start(self, seed: int) -> bool:
        """Initialize parameters from a seed, where rows cannot be loaded one by one. False: the caller loads rows."""
        return False

    @abstractmethod
    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        """Overwrite rows `start, start + 1, ...` of a table; state that `rows` does not name becomes zero.

        Weights arrive in fp32; a table of fp16 rounds them to nearest.

        Raises:
            IndexError: the rows reach outside the table.
            ValueError: the rows have another width, or their state another shape, than the table.
        """

    @abstractmethod
    def read_rows(self, table: str, ids: Tensor) -> Rows:
        """Copies of the rows `ids` (int64 `[n]`) of a table, up to date whatever is cached; fp32, whatever is kept.

        Raises:
            IndexError: an id is outside the table.
        """

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate, rounded to fp32, from the next forward on.

        Called between steps: a batch looked up whose backward is pending may train at either rate. `spec` keeps the
        value that the system was built with; a saved state has none. Raises NotImplementedError by default.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot change its learning rate")

    def optimizer_steps(self, table: str) -> int:
        """Number of updates of a table, for Adam's bias correction. Systems that support Adam override this."""
        return 0

    def set_optimizer_steps(self, table: str, steps: int) -> None:
        """Set the number of updates of a table. Systems that support Adam override this."""

    def flush(self) -> None:
        """Write back all changed rows: the host copy is up to date afterwards."""

    @abstractmethod
    def memory(self) -> MemoryBreakdown:
        """Bytes by tier and purpose, from the sizes of live tensors."""

    @abstractmethod
    def counters(self) -> Counters:
        """Traffic since the last reset."""

    @abstractmethod
    def reset_counters(self) -> None:
        """Reset all counters to zero."""

    def count_traffic(self, enabled: bool) -> None:
        """Switch on or off counting that costs time. The harness times with it off; cheap counters may ignore it."""

    def saved_shapes(self, table: str) -> dict[str, tuple[int, ...]]:
        """Shapes of a table's saved tensors, by name."""
        config, optimizer = self.tables[table], self.spec.optimizer
        steps: dict[str, tuple[int, ...]] = {"step": ()} if optimizer.kind is OptimizerKind.ADAM else {}
        entries = ["weight", *optimizer.state_shapes(config.embedding_dim)]
        return {entry: shape_of(config, entry, optimizer) for entry in entries} | steps

    def save_table(self, table: str) -> dict[str, Tensor]:
        """Copies of a table's rows, state and step count, by name, on the host."""
        config = self.tables[table]
        rows = self.read_rows(table, torch.arange(config.num_embeddings))
        saved = {"weight": rows.weights.to(row_type_of(config)), **rows.state}
        if self.spec.optimizer.kind is OptimizerKind.ADAM:
            saved["step"] = torch.tensor(self.optimizer_steps(table))
        return saved

    def load_table(self, table: str, saved: dict[str, Tensor]) -> None:
        """Overwrite a table with the result of `save_table`."""
        weights, step = saved.pop("weight"), saved.pop("step", None)
        self.load_rows(table, 0, Rows(weights.float(), saved))
        if step is not None:
            self.set_optimizer_steps(table, int(step))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.flush()
        for table in self.tables:
            for name, value in self.save_table(table).items():
                destination[f"{prefix}{self.rows_key}.{table}.{name}"] = value

    def _load_from_state_dict(  # noqa: PLR0917 - torch's signature
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Mapping[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        expected: set[str] = set()
        for table in self.tables:
            shapes = self.saved_shapes(table)
            keys = {name: f"{prefix}{self.rows_key}.{table}.{name}" for name in shapes}
            found = {name: state_dict[key] for name, key in keys.items() if key in state_dict}
            wrong = [
                f"{keys[name]} has shape {tuple(value.shape)}, table {table} wants {shapes[name]}"
                for name, value in found.items()
                if tuple(value.shape) != shapes[name]
            ]
            expected.update(keys.values())
            missing_keys += [key for key in keys.values() if key not in state_dict]
            error_msgs += wrong
            if found and not wrong:  # torch always passes strict=True, and raises for missing keys later
                kept = {} if len(found) == len(keys) else self.save_table(table)
                self.load_table(table, {**kept, **found})
        if strict:
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in expected]

    def check_rows(self, name: str, start: int, rows: Rows) -> None:
        """Validate arguments of `load_rows`: a slice would clip, and a copy would broadcast, wrong ones silently."""
        table, count, last = self.tables[name], rows.weights.shape[0], start + rows.weights.shape[0] - 1
        if not isinstance(start, int) or not rows.weights.is_floating_point():
            raise TypeError(f"rows are floats from a whole number on, not {rows.weights.dtype} from {start!r} on")
        if not 0 <= start <= last + 1 <= table.num_embeddings:
            raise IndexError(f"rows {start} to {last} are not all in table {name} of {table.num_embeddings}")
        for entry, values in {"weight": rows.weights, **rows.state}.items():
            wanted = (count, *shape_of(table, entry, self.spec.optimizer)[1:])
            if tuple(values.shape) != wanted:
                raise ValueError(f"table {name} wants {entry} of shape {wanted}, not {tuple(values.shape)}")

    def check_ids(self, name: str, ids: Tensor) -> None:
        """Validate ids of `read_rows`: an id outside the table would read a row of another table."""
        rows = self.tables[name].num_embeddings
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
            raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} are not all in table {name} of {rows}")
