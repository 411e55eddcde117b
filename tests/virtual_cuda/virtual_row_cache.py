"""fbgemm's set-associative row cache on the virtual CUDA device: LRU, LFU, locks, lookups of lines."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from virtual_operators import argument, host
from virtual_streams import launch

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


def get_unique_indices(a: Arguments) -> tuple[Tensor, Tensor, None]:
    ids = a["linear_indices"]
    unique, length = (torch.empty(n, dtype=t, device="cuda") for n, t in ((ids.numel(), ids.dtype), (1, torch.int32)))
    values, count = host(unique), host(length)

    def kernel() -> None:
        found = ids.unique()
        values.zero_()
        values[: len(found)] = found
        count.fill_(len(found))

    launch(kernel)
    return unique, length, None


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


def _carry(a: Arguments, numbers: np.ndarray, lines: np.ndarray, weights: Tensor, *, home: bool) -> None:
    """Copy rows, by their numbers among those of all tables, to cache lines; or from there, `home`."""
    tables = a["cache_index_table_map"].numpy()[numbers]
    starts = a.get("hash_size_cumsum", a.get("cache_hash_size_cumsum")).numpy()
    dims = np.diff(a["D_offsets"].numpy())[tables]
    first = a["weights_offsets"].numpy()[tables] + (numbers - starts[tables]) * dims
    rows, cached = weights.view(-1), a["lxu_cache_weights"]
    for dim in np.unique(dims).tolist():
        some = dims == dim
        places = torch.from_numpy(first[some][:, None] + np.arange(dim))
        held = torch.from_numpy(lines[some])
        if home:
            rows[places] = cached[held, :dim]
        else:
            cached[held, :dim] = rows[places]


def _populate(a: Arguments, ranks: np.ndarray) -> tuple[int, int, int, tuple[np.ndarray, np.ndarray]]:
    """Give the missing rows of each set the lines that rank lowest, infinite ones excepted; `[sets, ways]`.

    How many distinct rows there were, how many were missing, how many found no line, and the lines taken.
    """
    state = a["lxu_cache_state"].numpy()
    ids = np.unique(a["linear_cache_indices"].numpy())
    ids = ids[ids < a["total_cache_hash_size"]]
    sets = set_of(ids, len(state))
    missing = ~(state[sets] == ids[:, None]).any(1)
    order = np.argsort(sets[missing], kind="stable")
    numbers, homes = ids[missing][order], sets[missing][order]
    turn = np.arange(len(homes)) - np.searchsorted(homes, homes)
    ways = np.argsort(ranks, axis=1, kind="stable")[homes, np.minimum(turn, state.shape[1] - 1)]
    found = (turn < state.shape[1]) & np.isfinite(ranks[homes, ways])
    numbers, homes, ways = numbers[found], homes[found], ways[found]
    lines, old = homes * state.shape[1] + ways, state[homes, ways]
    leaves = old != -1
    _carry(a, old[leaves], lines[leaves], a["weights"], home=True)
    _carry(a, numbers, lines, a["weights"], home=False)
    state[homes, ways] = numbers
    return len(ids), int(missing.sum()), int((~found).sum()), (homes, ways)


def lru_cache_populate(a: Arguments) -> None:
    def kernel() -> None:
        used, now, locks = a["lru_state"].numpy(), int(a["time_stamp"]), a["lxu_cache_locking_counter"].numpy()
        state, ids = a["lxu_cache_state"].numpy(), a["linear_cache_indices"]
        held = np.isin(state, ids.numpy()) & (state != -1)
        used[held] = now
        if a["lock_cache_line"]:
            locks[held] += 1
        taken = (used == now) | (locks > 0 if a["lock_cache_line"] else False)
        *counted, lines = _populate(a, np.where(taken, np.inf, used))
        used[lines] = now
        if a["lock_cache_line"]:
            locks[lines] += 1
        if a["gather_cache_stats"]:
            asked = int((ids < a["total_cache_hash_size"]).sum())
            a["uvm_cache_stats"][:5] += torch.tensor([1, asked, *counted], dtype=a["uvm_cache_stats"].dtype)

    launch(kernel)


def lfu_cache_populate(a: Arguments) -> None:
    def kernel() -> None:
        state, counts = a["lxu_cache_state"].numpy(), a["lfu_state"]
        ids, times = a["linear_cache_indices"].unique(return_counts=True)
        inside = ids < a["total_cache_hash_size"]
        counts[ids[inside]] += times[inside].to(counts.dtype)
        _populate(a, np.where(state == -1, -1.0, counts.numpy()[np.maximum(state, 0)]))

    launch(kernel)


def lxu_cache_flush(a: Arguments) -> None:
    def kernel() -> None:
        state = a["lxu_cache_state"].numpy().reshape(-1)
        lines = np.flatnonzero(state != -1)
        _carry(a, state[lines], lines, a["uvm_weights"], home=True)
        state.fill(-1)

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


CACHE = (
    linearize_cache_indices,
    get_unique_indices,
    lru_cache_populate,
    lfu_cache_populate,
    lxu_cache_flush,
    lxu_cache_locations_update,
    lxu_cache_locking_counter_decrement,
)


def _named(kernel: Callable[[Arguments], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: kernel(arguments(kernel.__name__, args, kwargs))


def _lookup_of_lines(*args: Any, **kwargs: Any) -> Tensor:
    """As `lxu_cache_lookup`, whose memory for the lines is the caller's."""
    given = args[6] if len(args) > 6 else kwargs.get("lxu_cache_locations_output")
    return lxu_cache_lookup(arguments("lxu_cache_lookup", args, kwargs), given)


def kernels() -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    return {kernel.__name__: _named(kernel) for kernel in CACHE} | {"lxu_cache_lookup": _lookup_of_lines}
