"""A collection's arguments: validation, and conversion of torch's optimizers."""

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torchrec import EmbeddingBagConfig
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from systems.freq_cache import sizing
from systems.freq_cache.sizing import CacheSpec
from systems.spec import (
    Budget,
    CacheRatio,
    DeviceBytes,
    HostBytes,
    OptimizerKind,
    SparseOptimizer,
    SystemSpec,
    check_hyper_parameters,
    row_type_of,
)

POLICIES = ("static", "lfu", "lru")
COPY_ENGINES = ("staged", "device")
MOST_LOOK_AHEAD = 64
_LOOK_AHEAD_ON_CUDA = 4
_WHOLE = ("device_bytes", "host_bytes", "ram_bytes", "look_ahead", "lookups_per_backward", "batch_lookups", "seed")
_TYPES: Mapping[str, tuple[type, str]] = {
    "cache_ratio": (numbers.Real, "a number"),
    **dict.fromkeys(_WHOLE, (numbers.Integral, "a whole number")),
    **dict.fromkeys(("pinned", "is_weighted"), (bool, "True or False")),
}


def check_types(given: Mapping[str, Any]) -> None:
    """Refuse arguments of a wrong type, by name; no flag is a number. None stands for a default.

    Raises:
        TypeError, ValueError: the message names the argument, or the table.
    """
    for name, (kind, words) in _TYPES.items():
        value = given[name]
        if value is not None and (isinstance(value, bool) != (kind is bool) or not isinstance(value, kind)):
            raise TypeError(f"{name} is {words}, not {type(value).__name__} {value!r}")
    tables = given["tables"]
    if not isinstance(tables, Sequence) or not all(isinstance(table, EmbeddingBagConfig) for table in tables):
        raise TypeError("tables are a list of EmbeddingBagConfig")
    for table in tables:
        for field in ("num_embeddings", "embedding_dim"):
            size = getattr(table, field)
            if not isinstance(size, numbers.Integral) or size < 1:
                raise ValueError(f"table {table.name}: {field} is a whole number from 1 on, not {size!r}")


def usual_look_ahead(device: torch.device | str) -> int:
    """Default look-ahead: on CUDA enough to overlap planning and copies with training; 0 on a CPU, which trains too."""
    return _LOOK_AHEAD_ON_CUDA if torch.device(device).type == "cuda" else 0


def budget_of(*, cache_ratio: float | None, device_bytes: int | None, host_bytes: int | None) -> Budget:
    """The one budget that is given.

    Raises:
        ValueError: there is not exactly one.
    """
    budgets: list[Budget] = []
    if cache_ratio is not None:
        budgets.append(CacheRatio(ratio=cache_ratio))
    if device_bytes is not None:
        budgets.append(DeviceBytes(total_bytes=device_bytes))
    if host_bytes is not None:
        budgets.append(HostBytes(total_bytes=host_bytes))
    if len(budgets) != 1:
        raise ValueError("give cache_ratio, device_bytes or host_bytes, one of them")
    return budgets[0]


def refusals(spec: CacheSpec) -> Iterator[str]:
    """Reasons why no cache can be built from a spec, with what to change."""
    for name, known in (("policy", POLICIES), ("copy_engine", COPY_ENGINES), ("slow_rows", (*sizing.SLOW_ROWS,))):
        if isinstance(given := getattr(spec, name), str) and given not in known:
            yield f"{name} '{given}' is none of {', '.join(known)}"
    if not 0 <= spec.look_ahead <= MOST_LOOK_AHEAD:
        yield f"look_ahead of {spec.look_ahead} is outside 0 to {MOST_LOOK_AHEAD}"
    for name, least in (("lookups_per_backward", 1), ("batch_lookups", 0), ("ram_bytes", 0)):
        if getattr(spec, name) < least:
            yield f"{name} of {getattr(spec, name)} is less than {least}"
    if spec.device.type == "meta":
        yield (
            "rows are no parameters that another device could take over later: give the device that looks them up, "
            "also where the model around is built on meta"
        )
    for argument, tables in (("table_kwargs", spec.table_optimizers), ("cache_rows", spec.cache_rows)):
        if unknown := sorted(set(tables) - {table.name for table in spec.tables}):
            yield f"{argument} names no table of the collection: {', '.join(unknown)}"
    if bad := sorted(name for name, n in spec.cache_rows.items() if not isinstance(n, numbers.Integral) or n < 1):
        yield f"cache_rows must be whole numbers from 1 on: {', '.join(bad)}"
    yield from _not_together(spec)


def _not_together(spec: CacheSpec) -> Iterator[str]:
    """Arguments that do not go together."""
    on_cpu, in_file, by_device = spec.device.type == "cpu", spec.tier == "file", spec.copy_engine == "device"
    if spec.policy == "static" and spec.frequencies is None:
        yield "policy=static ranks rows by id frequencies: give them, or use policy=lfu"
    if spec.tier == "pinned" and on_cpu:
        yield "pinned rows are for a GPU, which reads them by itself: leave them pageable, which is tier=host"
    if by_device and spec.tier != "pinned":
        yield "copy_engine=device is for rows that the device sees: pin them (tier=pinned), or leave it at staged"
    if by_device and find_spec("triton") is None:
        yield "copy_engine=device needs Triton, which CUDA builds of torch bring: install it, or leave it at staged"
    if isinstance(spec.budget, HostBytes) and not (in_file and on_cpu):
        yield "a host budget is for rows on a drive that a CPU trains: keep them in a directory, which is tier=file"
    if spec.ram_bytes and (not in_file or isinstance(spec.budget, HostBytes)):
        yield "ram_bytes is memory between slots and rows on a drive: give directory, and cache_ratio or device_bytes"
    if on_cpu and any(spec.optimizer_of(table).weight_decay for table in spec.tables):
        yield "fbgemm decays no rows on a CPU: leave weight_decay at 0"
    half = [table.name for table in spec.tables if row_type_of(table) is not torch.float32]
    if half and spec.row_error:
        yield f"slow_rows compresses rows of fp32: leave it at fp32, or change the data_type of {', '.join(half)}"


def check_frequencies(spec: CacheSpec) -> None:
    """Refuse frequencies by which policy `static` cannot rank rows.

    Raises:
        ValueError: the message names the table.
    """
    known = spec.frequencies or {}
    for table in spec.tables if spec.policy == "static" else ():
        found = known.get(table.name, torch.empty(0))
        if tuple(found.shape) != (table.num_embeddings,) or found.dtype != torch.int64:
            raise ValueError(
                f"policy=static ranks rows by frequency: give the accesses of every row of table {table.name}, int64 "
                f"[{table.num_embeddings}], not {found.dtype} {list(found.shape)}"
            )


_SCHEDULED = ("lr", "eps", "beta1", "beta2")
_KINDS: Mapping[type[torch.optim.Optimizer], OptimizerKind] = {
    torch.optim.SGD: OptimizerKind.SGD,
    torch.optim.Adagrad: OptimizerKind.ADAGRAD,
    torch.optim.Adam: OptimizerKind.ADAM,
    torch.optim.AdamW: OptimizerKind.ADAM,
    RowWiseAdagrad: OptimizerKind.ROWWISE_ADAGRAD,
}
_TAKEN = {"lr", "eps", "betas", "weight_decay"}
_HOW_ONLY = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}
"""Arguments that change how torch computes a step, not the step."""


def sparse_optimizer(
    optimizer: SparseOptimizer | type[torch.optim.Optimizer], arguments: Mapping[str, Any]
) -> SparseOptimizer:
    """The fused optimizer that takes the same steps as one of torch's.

    Args:
        optimizer: SGD, Adagrad, Adam or AdamW of `torch.optim`, or torchrec's RowWiseAdagrad. With a `SparseOptimizer`
            the arguments replace its fields.
        arguments: Arguments of the class; torch's defaults hold for others. As in torchrec, `gradient_clipping` and
            `max_gradient` are accepted.

    Raises:
        ValueError: fbgemm has no such optimizer or no such argument; the message says what to change.
        TypeError: the class has no such argument.
    """
    if isinstance(optimizer, SparseOptimizer):
        return replace(optimizer, **arguments)
    given = dict(arguments)
    clips = given.pop("gradient_clipping", "max_gradient" in given)
    max_gradient = given.pop("max_gradient", 1.0)
    kind = _KINDS.get(optimizer)
    if kind is None:
        known = ", ".join(sorted(one.__name__ for one in _KINDS))
        raise ValueError(f"{getattr(optimizer, '__name__', optimizer)} is not fused into backward: use {known}")
    chosen = optimizer([nn.Parameter(torch.zeros(1, 1))], **given).defaults
    if unknown := sorted(set(given) - set(chosen)):  # RowWiseAdagrad takes any
        raise TypeError(f"{optimizer.__name__} has no argument {', '.join(unknown)}")
    other = [name for name, value in chosen.items() if name not in _TAKEN | _HOW_ONLY and value]
    if other:
        raise ValueError(f"fbgemm's {kind} has no {', '.join(other)}: leave it out")
    decays = optimizer in {RowWiseAdagrad, torch.optim.AdamW} or chosen.get("decoupled_weight_decay")
    if chosen["weight_decay"] and not decays:
        raise ValueError(f"{optimizer.__name__} with weight_decay is not fused: use RowWiseAdagrad or AdamW, or 0")
    betas = chosen.get("betas", (0.9, 0.999))
    return SparseOptimizer(
        kind=kind,
        lr=float(chosen["lr"]),
        eps=chosen.get("eps", 1e-8),
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=chosen["weight_decay"],
        max_gradient=max_gradient if clips else math.inf,
    )


class FusedOptimizer(torch.optim.Optimizer):
    """Holds the tables' hyper-parameters in `param_groups`; backward updates the rows, `step` does nothing.

    Pass it to a scheduler of `torch.optim.lr_scheduler` and call `step()` as usual. Values changed in `param_groups`
    apply from the next lookup on. The first group holds all tables without an optimizer of their own; the other groups
    have a `name`, the first of their tables.
    """

    def __init__(self, spec: SystemSpec) -> None:
        names = {spec.optimizer: ""}
        for table in spec.tables:
            names.setdefault(spec.optimizer_of(table), table.name)
        groups = [
            {"params": [nn.Parameter(torch.empty(0), requires_grad=False)], "name": name}
            | {hyper: getattr(one, hyper) for hyper in _SCHEDULED}
            for one, name in names.items()
        ]
        super().__init__(groups, {hyper: groups[0][hyper] for hyper in _SCHEDULED})
        order = list(names)
        self._group_of_table = {table.name: order.index(spec.optimizer_of(table)) for table in spec.tables}

    def values_of(self, table: EmbeddingBagConfig) -> dict[str, float]:
        """The hyper-parameters of a table at the next lookup.

        Raises:
            ValueError: as `check_hyper_parameters`.
        """
        group = self.param_groups[self._group_of_table[table.name]]
        check_hyper_parameters(values := {name: group[name] for name in _SCHEDULED})
        return {name: float(value) for name, value in values.items()}

    @property
    def hyper(self) -> dict[str, float]:
        """The hyper-parameters of the next lookup; keys of named groups are `<name>.<hyper-parameter>`."""
        return {_prefix(group) + name: float(group[name]) for group in self.param_groups for name in _SCHEDULED}

    def restore(self, hyper: Mapping[str, float]) -> None:
        """Set hyper-parameters from a result of `hyper`; others keep their values."""
        for group in self.param_groups:
            group.update({name: hyper[key] for name in _SCHEDULED if (key := _prefix(group) + name) in hyper})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401 - torch's signature
        """Do nothing: backward has updated the rows."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: no gradient is kept."""


def _prefix(group: Mapping[str, Any]) -> str:
    return f"{group['name']}." if group["name"] else ""
