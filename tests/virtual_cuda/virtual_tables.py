"""fbgemm's table-batched embeddings on the virtual CUDA device: lookup and fused update.

The wheel's own host code runs (constructors, invokers, autograd functions, checks). Here is what would launch kernels:
forward and backward of pooled and sequence lookups (SGD, row-wise Adagrad, Adagrad, Adam). What has a CPU kernel of the
same schema runs it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from virtual_operators import Kernel, define, overload
from virtual_row_cache import Arguments, arguments, made
from virtual_row_cache import kernels as kernels_of_the_cache
from virtual_streams import launch

DEVICE, CACHED = 0, 2
"""Placements of a table; 1 is managed memory without a cache."""
_TYPES = {0: torch.float32, 1: torch.float16, 5: torch.bfloat16}


class Batch:
    """The ids that a batch asks of the tables of one TBE, by feature."""

    def __init__(self, a: Arguments) -> None:
        self.a = a
        self.features = len(a["weights_offsets"])
        self.bags = (a["offsets"].numel() - 1) // max(1, self.features)
        columns = None if "D" in a else a["D_offsets"].tolist()
        self.columns = columns  # where a feature's columns of the output begin; None: rows are not pooled
        self.dims = [a["D"]] * self.features if columns is None else np.diff(columns).tolist()

    def __iter__(self) -> Iterator[tuple[int, slice, Tensor]]:
        """A feature, where its ids are, and the bag of each."""
        for feature in range(self.features):
            ends = self.a["offsets"][feature * self.bags : (feature + 1) * self.bags + 1].long()
            yield (
                feature,
                slice(int(ends[0]), int(ends[-1])),
                torch.repeat_interleave(torch.arange(self.bags), ends.diff()),
            )

    def weights(self, span: slice, bag: Tensor) -> Tensor | None:
        """What a row counts in its bag, `[n, 1]`; None: one."""
        if self.a.get("indice_weights") is not None:
            return self.a["indice_weights"][span].float()[:, None]  # type: ignore[no-any-return]
        if self.a.get("pooling_mode") == 1:
            return 1 / torch.bincount(bag, minlength=self.bags)[bag].float()[:, None]
        return None

    def lines(self, feature: int, span: slice) -> Tensor | None:
        """The cache lines of a feature's ids, -1: none; None: its table has no cache."""
        cached = int(self.a["weights_placements"][feature]) == CACHED and self.a["lxu_cache_locations"].numel()
        return self.a["lxu_cache_locations"][span].long() if cached else None

    def gradient(self, feature: int, span: slice, bag: Tensor) -> Tensor:
        """The gradient of every row, before weights."""
        given = self.a["grad_output"]
        if self.columns is None:
            return given[span].float()  # type: ignore[no-any-return]
        return given[:, self.columns[feature] : self.columns[feature + 1]].float()[bag]  # type: ignore[no-any-return]


class Rows:
    """Rows of one table, wherever they are: in its cache's lines, else in its memory."""

    def __init__(self, batch: Batch, feature: int, ids: Tensor, lines: Tensor | None) -> None:
        self._a, self._feature, self.dim = batch.a, feature, batch.dims[feature]
        self.ids = ids.long()
        self._hit = None if lines is None else lines >= 0
        self._lines = lines

    def places(self, what: str, width: int) -> tuple[Tensor, Tensor]:
        """Flat memory, and where in it the numbers of the rows are, `[n, width]`."""
        on_device = int(self._a[f"{what}_placements"][self._feature]) == DEVICE
        side = "dev" if on_device else "uvm"
        flat = self._a[f"{side}_weights" if what == "weights" else f"{what}_{side}"].view(-1)
        start = int(self._a[f"{what}_offsets"][self._feature])
        return flat, start + self.ids[:, None] * width + torch.arange(width)

    def read(self) -> Tensor:
        flat, at = self.places("weights", self.dim)
        rows = flat[at].float() if flat.numel() else torch.zeros(len(self.ids), self.dim)
        if self._lines is not None and self._hit is not None:
            rows[self._hit] = self._a["lxu_cache_weights"][self._lines[self._hit], : self.dim].float()
        return rows

    def write(self, rows: Tensor) -> None:
        flat, at = self.places("weights", self.dim)
        missed = slice(None) if self._hit is None else ~self._hit
        flat[at[missed]] = rows[missed].to(flat.dtype)
        if self._lines is not None and self._hit is not None:
            lines = self._a["lxu_cache_weights"]
            lines[self._lines[self._hit], : self.dim] = rows[self._hit].to(lines.dtype)


def forward(name: str, *args: Any, **kwargs: Any) -> Tensor:
    a = arguments(name, args, kwargs)
    bags = (a["offsets"].numel() - 1) // max(1, len(a["weights_offsets"]))
    shape = (a["indices"].numel(), a["D"]) if "D" in a else (bags, a["total_D"])
    return made(_look_up, *shape, dtype=_TYPES[a["output_dtype"]], a=a)


def _look_up(out: Tensor, a: Arguments) -> None:
    batch, pooled = Batch(a), torch.zeros(out.size())
    for feature, span, bag in batch:
        rows = Rows(batch, feature, a["indices"][span], batch.lines(feature, span)).read()
        if batch.columns is None:
            pooled[span] = rows
            continue
        weights = batch.weights(span, bag)
        pooled[:, batch.columns[feature] : batch.columns[feature + 1]].index_add_(
            0, bag, rows if weights is None else rows * weights
        )
    out.copy_(pooled)


def gradient_of_weights(name: str, *args: Any, **kwargs: Any) -> Tensor:
    a = arguments(name, args, kwargs)

    def kernel(out: Tensor) -> None:
        batch = Batch(a)
        for feature, span, bag in batch:
            rows = Rows(batch, feature, a["indices"][span], batch.lines(feature, span)).read()
            out[span] = (batch.gradient(feature, span, bag) * rows).sum(1)

    return made(kernel, a["indices"].numel(), dtype=torch.float32)


def backward(name: str, update: Callable[[Arguments, Rows, Tensor], Tensor], *args: Any, **kwargs: Any) -> Tensor:
    a = arguments(name, args, kwargs)
    launch(lambda: _train(a, update))
    return torch.empty(0, device="cuda")


def _train(a: Arguments, update: Callable[[Arguments, Rows, Tensor], Tensor]) -> None:
    """Update every row of a batch once, by the sum of its gradients over the features of its table."""
    batch = Batch(a)
    tables: dict[int, list[tuple[int, slice, Tensor]]] = {}
    for feature, span, bag in batch:
        weights = batch.weights(span, bag)
        gradient = batch.gradient(feature, span, bag)
        part = feature, span, gradient if weights is None else gradient * weights
        tables.setdefault(int(a["hash_size_cumsum"][feature]), []).append(part)
    before = 0  # distinct rows so far, by which a TBE that prefetches numbers their lines
    for _, parts in sorted(tables.items()):
        feature = parts[0][0]
        ids, inverse = torch.cat([a["indices"][span] for _, span, _ in parts]).unique(return_inverse=True)
        if not len(ids):
            continue
        sums = torch.zeros(len(ids), batch.dims[feature]).index_add_(0, inverse, torch.cat([part[2] for part in parts]))
        lines = batch.lines(feature, slice(before, before + len(ids)))
        if lines is not None and not a["use_uniq_cache_locations"]:
            every = torch.cat([a["lxu_cache_locations"][span].long() for _, span, _ in parts])
            lines = torch.full((len(ids),), -1).scatter_reduce_(0, inverse, every, "amax")
        before += len(ids)
        rows = Rows(batch, feature, ids, lines)
        rows.write(update(a, rows, sums))


def sgd(a: Arguments, rows: Rows, gradient: Tensor) -> Tensor:
    return rows.read() - float(a["learning_rate_tensor"]) * gradient


def rowwise_adagrad(a: Arguments, rows: Rows, gradient: Tensor) -> Tensor:
    values, rate, decay, mode = rows.read(), float(a["learning_rate_tensor"]), a["weight_decay"], a["weight_decay_mode"]
    if mode == 1:  # L2
        gradient = gradient + decay * values
    flat, at = rows.places("momentum1", 1)
    flat[at[:, 0]] = moment = flat[at[:, 0]] + gradient.square().mean(1)
    kept = 1 - rate * decay if mode == 2 else 1.0  # decoupled
    return kept * values - (rate / (moment.sqrt() + a["eps"]))[:, None] * gradient


def adagrad(a: Arguments, rows: Rows, gradient: Tensor) -> Tensor:
    flat, at = rows.places("momentum1", rows.dim)
    flat[at] = moment = flat[at] + gradient.square()
    return rows.read() - float(a["learning_rate_tensor"]) * gradient / (moment.sqrt() + a["eps"])


def adam(a: Arguments, rows: Rows, gradient: Tensor) -> Tensor:
    moments = []
    for what, beta, value in (("momentum1", a["beta1"], gradient), ("momentum2", a["beta2"], gradient.square())):
        flat, at = rows.places(what, rows.dim)
        flat[at] = moment = beta * flat[at] + (1 - beta) * value
        moments.append(moment / (1 - beta ** a["iter"]))
    values = rows.read()
    return values - float(a["learning_rate_tensor"]) * (
        moments[0] / (moments[1].sqrt() + a["eps"]) + a["weight_decay"] * values
    )


UPDATES = {update.__name__: update for update in (sgd, rowwise_adagrad, adagrad, adam)}
_OWN = (
    "_function", "_pt2_wrapper", "managed_tensor", "mapped_tensor", "unified_tensor", "uvm_", "is_uvm", "auto_grad",
    "mem_advise", "mem_prefetch", "all_to_one", "merge_pooled", "sum_reduce", "regroup_keyed",
)  # fmt: skip
"""Parts of the names of operators that stay fbgemm's own: they launch no kernel, or call other operators."""


def install() -> None:
    """Take over fbgemm's operators that have CUDA kernels."""
    kernels = kernels_of_the_cache()
    name = "split_embedding_codegen_grad_indice_weights_cuda"
    kernels[name] = functools.partial(gradient_of_weights, name)
    for kind in ("", "nobag_"):
        for weighted in ("unweighted", "weighted"):
            name = f"split_embedding_{kind}codegen_forward_{weighted}_cuda"
            kernels[name] = functools.partial(forward, name)
            for optimizer, update in UPDATES.items():
                name = f"split_embedding_{kind}backward_codegen_{optimizer}_{weighted}_exact_cuda"
                kernels[name] = functools.partial(backward, name, update)
    on_device = {
        qualified.partition("::")[2]
        for qualified in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
        if qualified.startswith("fbgemm::")
    }
    on_host = {q.partition("::")[2] for q in torch._C._dispatch_get_registrations_for_dispatch_key("CPU")}
    by_cpu = {
        name: Kernel(overload(f"fbgemm::{name}"))
        for name in (on_device & on_host) - kernels.keys()
        if not any(part in name for part in _OWN)
    }
    define("fbgemm", by_cpu | {name: kernel for name, kernel in kernels.items() if name in on_device})
