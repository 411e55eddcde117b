"""fbgemm's table-batched embeddings on the virtual CUDA device: lookup, fused update and row cache.

The wheel's own host code runs (constructors, invokers, autograd functions, checks). Here is what would launch kernels:
forward and backward of pooled and sequence lookups (SGD, row-wise Adagrad, Adagrad, Adam) and the set-associative cache
(LRU, LFU, locks). What has a CPU kernel of the same schema runs it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from virtual_operators import Kernel, argument, define, host, launch, overload

DEVICE, CACHED = 0, 2
"""Placements of a table; 1 is managed memory without a cache."""
_TYPES = {0: torch.float32, 1: torch.float16, 5: torch.bfloat16}
Arguments = dict[str, Any]


def arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of an operator by name, defaults filled in, tensors as a kernel has them."""
    given: Arguments = {}
    for at, one in enumerate(getattr(torch.ops.fbgemm, name).default._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(one.name, one.default_value)
        given[one.name] = argument(value) if isinstance(value, Tensor) else value
    return given


def made(kernel: Callable[..., object], *shape: int, dtype: torch.dtype, **known: Any) -> Tensor:
    """Memory on the device that `kernel(memory, **known)` fills when its turn comes."""
    out = torch.empty(shape, dtype=dtype, device="cuda")
    memory = host(out)
    launch(lambda: kernel(memory, **known))
    return out


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


# ------------------------------------------------------------ the row cache


def set_of(ids: np.ndarray, sets: int) -> np.ndarray:
    """The set of every row: the finaliser of MurmurHash3, modulo the sets."""
    h = ids.astype(np.uint64)
    with np.errstate(over="ignore"):
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            h ^= h >> np.uint64(33)
            h *= np.uint64(factor)
        h ^= h >> np.uint64(33)
    return (h % np.uint64(sets)).astype(np.int64)  # type: ignore[no-any-return]


def linearize_cache_indices(a: Arguments) -> Tensor:
    def kernel(out: Tensor) -> None:
        starts, ids, ends = a["cache_hash_size_cumsum"], a["indices"].long(), a["offsets"].long()
        features = len(starts) - 1
        bags = (len(ends) - 1) // features
        out.fill_(int(starts[-1]))  # of a table without a cache, or no id
        for feature in range(features):
            span = slice(int(ends[feature * bags]), int(ends[(feature + 1) * bags]))
            if int(starts[feature]) >= 0:
                out[span] = torch.where(ids[span] >= 0, ids[span] + starts[feature], starts[-1])

    return made(kernel, a["indices"].numel(), dtype=torch.int64)


def linearize_cache_indices_from_row_idx(a: Arguments) -> Tensor:
    def kernel(out: Tensor) -> None:
        starts = a["cache_hash_size_cumsum"]
        first = starts[a["update_table_indices"].long()]
        out.copy_(torch.where(first >= 0, first + a["update_row_indices"].long(), starts[-1]))

    return made(kernel, a["update_row_indices"].numel(), dtype=torch.int64)


def get_unique_indices(a: Arguments) -> tuple[Tensor, Tensor, Tensor | None]:
    ids = a["linear_indices"]
    unique = torch.empty(ids.numel(), dtype=ids.dtype, device="cuda")
    length, counts = (torch.empty(n, dtype=torch.int32, device="cuda") for n in (1, ids.numel()))
    outs = host(unique), host(length), host(counts)

    def kernel() -> None:
        values, times = ids.unique(return_counts=True)
        for out, made in zip(outs, (values, torch.tensor([len(values)]), times), strict=True):
            out.zero_()
            out[: len(made)] = made

    launch(kernel)
    return unique, length, counts if a["compute_count"] else None


def lxu_cache_lookup(a: Arguments, out: Tensor | None = None) -> Tensor:
    ids = a["linear_cache_indices"]
    given = out if out is not None else torch.empty(ids.numel(), dtype=torch.int32, device="cuda")
    lines = host(given)

    def kernel() -> None:
        count, state, some = a["num_uniq_cache_indices"], a["lxu_cache_state"].numpy(), ids.numpy()
        some = some if count is None else some[: int(count)]
        lines[: ids.numel()] = -1
        if state.size and some.size:
            sets, asked = set_of(some, len(state)), some != a["invalid_index"]
            match = (state[sets] == some[:, None]) & asked[:, None]
            found = np.where(match.any(1), sets * state.shape[1] + match.argmax(1), -1)
            lines[: some.size] = torch.from_numpy(found)
            if a["gather_cache_stats"]:
                a["uvm_cache_stats"][5] += int((asked & (found < 0)).sum())

    launch(kernel)
    return given


def _row(a: Arguments, number: int, weights: Tensor) -> Tensor:
    """A row of a cached table, by its number among those of all."""
    table = int(a["cache_index_table_map"][number])
    starts = a.get("hash_size_cumsum", a.get("cache_hash_size_cumsum"))
    dim = int(a["D_offsets"][table + 1] - a["D_offsets"][table])
    first = int(a["weights_offsets"][table]) + (number - int(starts[table])) * dim
    return weights.view(-1)[first : first + dim]


def _populate(
    a: Arguments, rank: Callable[[int, int], int | None], took: Callable[[int, int], None]
) -> tuple[int, int, int]:
    """Give every missing row the line of its set that ranks lowest; None: that one stays. How many distinct rows there
    were, how many were missing, how many found no line."""
    state, cached = a["lxu_cache_state"], a["lxu_cache_weights"]
    ids = np.unique(a["linear_cache_indices"].numpy())
    ids = ids[ids < a["total_cache_hash_size"]]
    sets = set_of(ids, len(state))
    missing = ~(state.numpy()[sets] == ids[:, None]).any(1)
    refused = 0
    for number, home in zip(ids[missing].tolist(), sets[missing].tolist(), strict=True):
        free = [(value, way) for way in range(state.shape[1]) if (value := rank(home, way)) is not None]
        if not free:
            refused += 1
            continue
        way = min(free)[1]
        line, old = cached[home * state.shape[1] + way], int(state[home, way])
        if old != -1:
            row = _row(a, old, a["weights"])
            row.copy_(line[: len(row)])
        row = _row(a, number, a["weights"])
        line[: len(row)] = row
        state[home, way] = number
        took(home, way)
    return len(ids), int(missing.sum()), refused


def lru_cache_populate(a: Arguments) -> None:
    def kernel() -> None:
        used, now, locks = a["lru_state"], a["time_stamp"], a["lxu_cache_locking_counter"]
        state, ids = a["lxu_cache_state"].numpy(), a["linear_cache_indices"]
        held = torch.from_numpy(np.isin(state, ids.numpy()) & (state != -1))
        used[held] = now
        if a["lock_cache_line"]:
            locks[held] += 1

        def rank(home: int, way: int) -> int | None:
            taken = int(used[home, way]) == now or (a["lock_cache_line"] and int(locks[home, way]) > 0)
            return None if taken else int(used[home, way])

        def took(home: int, way: int) -> None:
            used[home, way] = now
            if a["lock_cache_line"]:
                locks[home, way] += 1

        distinct, missing, refused = _populate(a, rank, took)
        if a["gather_cache_stats"]:
            asked = int((ids < a["total_cache_hash_size"]).sum())
            a["uvm_cache_stats"][:5] += torch.tensor(
                [1, asked, distinct, missing, refused], dtype=a["uvm_cache_stats"].dtype
            )

    launch(kernel)


def lfu_cache_populate(a: Arguments) -> None:
    def kernel() -> None:
        state, counts = a["lxu_cache_state"], a["lfu_state"]
        ids, times = a["linear_cache_indices"].unique(return_counts=True)
        inside = ids < a["total_cache_hash_size"]
        counts[ids[inside]] += times[inside].to(counts.dtype)
        fresh: set[tuple[int, int]] = set()

        def rank(home: int, way: int) -> int | None:
            old = int(state[home, way])
            return None if (home, way) in fresh else -1 if old == -1 else int(counts[old])

        _populate(a, rank, lambda home, way: fresh.add((home, way)))

    launch(kernel)


def lxu_cache_flush(a: Arguments) -> None:
    def kernel() -> None:
        state, cached = a["lxu_cache_state"], a["lxu_cache_weights"]
        for home, way in (state != -1).nonzero().tolist():
            row = _row(a, int(state[home, way]), a["uvm_weights"])
            row.copy_(cached[home * state.shape[1] + way, : len(row)])
        state.fill_(-1)

    launch(kernel)


def lxu_cache_locations_update(a: Arguments) -> None:
    def kernel() -> None:
        lines, new, count = a["lxu_cache_locations"], a["lxu_cache_locations_new"], a["num_uniq_cache_indices"]
        some = len(lines) if count is None else int(count)
        lines[:some] = torch.where((lines[:some] == -1) & (new[:some] != -1), new[:some], lines[:some])

    launch(kernel)


def lxu_cache_locking_counter_decrement(a: Arguments) -> None:
    def kernel() -> None:
        lines = a["lxu_cache_locations"].unique().long()
        a["lxu_cache_locking_counter"].view(-1)[lines[lines >= 0]] -= 1

    launch(kernel)


UPDATES = {update.__name__: update for update in (sgd, rowwise_adagrad, adagrad, adam)}
CACHE = (
    linearize_cache_indices,
    linearize_cache_indices_from_row_idx,
    get_unique_indices,
    lru_cache_populate,
    lfu_cache_populate,
    lxu_cache_flush,
    lxu_cache_locations_update,
    lxu_cache_locking_counter_decrement,
)
_OWN = (
    "_function", "_pt2_wrapper", "managed_tensor", "mapped_tensor", "unified_tensor", "uvm_", "is_uvm", "auto_grad",
    "mem_advise", "mem_prefetch", "all_to_one", "merge_pooled", "sum_reduce", "regroup_keyed",
)  # fmt: skip
"""Parts of the names of operators that stay fbgemm's own: they launch no kernel, or call other operators."""


def _named(kernel: Callable[[Arguments], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: kernel(arguments(kernel.__name__, args, kwargs))


def _lookup_of_lines(*args: Any, **kwargs: Any) -> Tensor:
    """As `lxu_cache_lookup`, whose memory for the lines is the caller's."""
    given = args[6] if len(args) > 6 else kwargs.get("lxu_cache_locations_output")
    return lxu_cache_lookup(arguments("lxu_cache_lookup", args, kwargs), given)


def install() -> None:
    """Take over fbgemm's operators that have CUDA kernels."""
    kernels: dict[str, Callable[..., Any]] = {kernel.__name__: _named(kernel) for kernel in CACHE}
    kernels["lxu_cache_lookup"] = _lookup_of_lines
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
