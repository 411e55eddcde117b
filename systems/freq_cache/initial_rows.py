"""First values of rows, computed from the row id alone, so that a row exists before anybody has stored it.

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11).
It counts instead of carrying a state: the block of four columns `4 b .. 4 b + 3` of a row is the cipher of the counter
`(b, row id, table)` under the seed.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numba
import numpy as np
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.freq_cache.compiled import compiled, in_parts
from systems.freq_cache.tiers.slow_tier import width_of

Words = tuple[np.uint32, np.uint32, np.uint32, np.uint32]
Key = tuple[np.uint32, np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_ROUNDS = 10
_HALF = np.uint64(32)
_SPARE_BITS = np.int32(8)
_PART_VALUES = 1 << 18
"""Minimum values per thread."""


def first_rows_of(
    tables: Sequence[EmbeddingBagConfig], *, seed: int | None, streams: Sequence[int]
) -> Callable[[Tensor], Tensor]:
    """Make a function that gives the initial values of rows of tables of one width, numbered table after table.

    Values are uniform within the table's own bounds, if it has some, else in `[-1 / sqrt(rows), 1 / sqrt(rows))`; zero
    without a seed. A value depends on the seed, the stream, the row's id in its table and the column, on nothing else:
    any rows, in any order and any grouping, come out as they would if the whole table were filled at once. It carries
    24 random bits. The function uses torch's number of threads, on which the values do not depend.

    `seed`: 0 to 2**64 - 1. `streams`: number of each table, 0 to 2**32 - 1.

    Returns:
        A function of the row numbers, int64 `[n]` on the host, that returns fp32 `[n, dim]`.

    Cost: on one core with AVX-512, 1.3 to 3.4 thousand million values/s for 16 columns and more, 0.3 for 4.
    """
    sizes, dim = [table.num_embeddings for table in tables], tables[0].embedding_dim
    starts, numbers = np.array([0, *accumulate(sizes)]), np.array(streams, np.uint32)
    scales = np.array([rows**-0.5 * 2.0**-23 for rows in sizes], np.float32)
    spans, middles = np.ones_like(scales), np.zeros_like(scales)
    for at, table in enumerate(tables):
        if table.weight_init_min is not None or table.weight_init_max is not None:
            low, high = table.get_weight_init_min(), table.get_weight_init_max()
            spans[at], middles[at] = sizes[at] ** 0.5 * (high - low) / 2, (high + low) / 2

    def first_rows(ids: Tensor) -> Tensor:
        if seed is None:
            return torch.zeros(ids.numel(), dim)
        made, key = torch.empty(ids.numel(), width_of(dim)), (np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32))
        wanted, out = ids.numpy(), made.numpy()

        def fill(part: slice) -> None:
            _fill(wanted[part], out[part], key, starts, numbers, scales, spans, middles)

        in_parts(fill, wanted.size, most=made.numel() // _PART_VALUES)
        return made[:, :dim]

    return first_rows


def check_first_rows(tables: Sequence[EmbeddingBagConfig], seed: int | None) -> None:
    """Refuse a seed that is none, and tables whose rows cannot be made one by one from it.

    Raises:
        ValueError: the message says what to change.
    """
    if seed is not None and not 0 <= seed < 1 << 64:
        raise ValueError(f"seed {seed} is outside 0 to 2**64 - 1")
    for table in tables if seed is not None else ():
        made, bounds = table.init_fn, (table.get_weight_init_min(), table.get_weight_init_max())
        if not all(map(math.isfinite, bounds)):
            raise ValueError(f"table {table.name} has first rows from {bounds[0]} to {bounds[1]}: give finite numbers")
        if made is not None and getattr(made, "func", None) is not torch.nn.init.uniform_:
            raise ValueError(
                f"table {table.name} has an init_fn, which fills a whole table where rows here are made one by one: "
                "use weight_init_min and weight_init_max, or load rows with load_rows or load_state_dict"
            )


# LLVM turns blocks into vector lanes only if the call is gone before it starts: 0.25 thousand million values/s else
@numba.njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def philox(counter: Words, key: Key) -> Words:
    """Four random words of a counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first = _MULTIPLIERS[0] * np.uint64(c0)
        second = _MULTIPLIERS[1] * np.uint64(c2)
        c0 = np.uint32(second >> _HALF) ^ c1 ^ k0
        c2 = np.uint32(first >> _HALF) ^ c3 ^ k1
        c1, c3 = np.uint32(second), np.uint32(first)
        k0, k1 = np.uint32(k0 + _KEY_STEPS[0]), np.uint32(k1 + _KEY_STEPS[1])
    return c0, c1, c2, c3


@compiled
def _fill(ids, out, key, starts, numbers, scales, spans, middles):
    """Make rows, fp32 `[n, columns]`, contiguous, of a multiple of 4 columns.

    `starts`: the first row of each table, and where the last one ends. `numbers`: of their streams. `scales`: factors
    of a word's upper 24 bits. `spans`, `middles`: by which a value is multiplied, and what is added then.
    """
    at = 0
    for i in range(ids.size):
        if not starts[at] <= ids[i] < starts[at + 1]:
            at, beyond = 0, numbers.size
            while beyond - at > 1:
                middle = (at + beyond) // 2
                if starts[middle] <= ids[i]:
                    at = middle
                else:
                    beyond = middle
        row, number, scale = np.uint64(ids[i] - starts[at]), numbers[at], scales[at]
        low, high = np.uint32(row), np.uint32(row >> _HALF)
        for block in range(out.shape[1] // 4):
            words = philox((np.uint32(block), low, high, number), key)
            column = 4 * block
            # the upper 24 bits, signed, are exact in fp32: one rounding, in the product
            out[i, column] = np.float32(np.int32(words[0]) >> _SPARE_BITS) * scale
            out[i, column + 1] = np.float32(np.int32(words[1]) >> _SPARE_BITS) * scale
            out[i, column + 2] = np.float32(np.int32(words[2]) >> _SPARE_BITS) * scale
            out[i, column + 3] = np.float32(np.int32(words[3]) >> _SPARE_BITS) * scale
        if spans[at] != 1 or middles[at] != 0:
            for column in range(out.shape[1]):
                out[i, column] = out[i, column] * spans[at] + middles[at]
