"""First values of rows, computed from the row id alone, so that a row exists before anybody has stored it.

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11).
It counts instead of carrying a state: the block of four columns `4 b .. 4 b + 3` of a row is the cipher of the counter
`(b, row id, table)` under the seed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import EmbeddingBagConfig

from systems.freq_cache.compiled import compiled

Words = tuple[np.uint32, np.uint32, np.uint32, np.uint32]
Key = tuple[np.uint32, np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_ROUNDS = 10
_HALF = np.uint64(32)
_SPARE_BITS = np.int32(8)


def uniform_rows(ids: Tensor, *, rows: int, dim: int, seed: int, stream: int) -> Tensor:
    """The first values of rows, fp32 `[n, dim]` on the host, uniform in `[-1 / sqrt(rows), 1 / sqrt(rows))`.

    A value depends on the seed, the stream, the row id and the column, on nothing else: any rows, in any order and
    any grouping, come out as they would if the whole table were filled at once. It carries 24 random bits.

    Args:
        ids: Row ids, int64 `[n]` on the host, 0 or more.
        rows: Rows of the table, which set the bound.
        dim: Columns.
        seed: 0 to 2**64 - 1.
        stream: Number of the table, 0 to 2**32 - 1.

    Cost: on one core with AVX-512, 1.1 to 2 thousand million values/s for 16 columns and more, 0.3 for 4.
    """
    scale = np.float32(rows**-0.5 * 2.0**-23)
    key = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    blocks = torch.empty(ids.numel(), dim + -dim % 4)
    _fill(ids.numpy(), blocks.numpy(), key, np.uint32(stream), scale)
    return blocks[:, :dim]


def first_rows_of(
    tables: Sequence[EmbeddingBagConfig], *, seed: int | None, streams: Sequence[int]
) -> Callable[[Tensor, Tensor], None]:
    """What fills any rows of some tables of one width, numbered table after table, with their first values.

    These are uniform, within the bounds that a table has for them, else as `uniform_rows` has them; without a seed 0.

    Returns:
        A function of the row numbers, int64 `[n]`, and of where to, floating `[n, dim]`.
    """
    starts = torch.tensor([0, *(table.num_embeddings for table in tables)]).cumsum(0)

    def fill(ids: Tensor, out: Tensor) -> None:
        if seed is None:
            out.zero_()
            return
        of_row = torch.bucketize(ids, starts, right=True) - 1
        for at in of_row.unique().tolist():
            table = tables[at]
            where = (of_row == at).nonzero().squeeze(1)
            made = uniform_rows(
                ids[where] - starts[at],
                rows=table.num_embeddings,
                dim=table.embedding_dim,
                seed=seed,
                stream=streams[at],
            )
            low, high = table.get_weight_init_min(), table.get_weight_init_max()
            if table.weight_init_min is not None or table.weight_init_max is not None:
                made.mul_(table.num_embeddings**0.5 * (high - low) / 2).add_((high + low) / 2)
            out[where] = made.to(out.dtype)

    return fill


def check_first_rows(tables: Sequence[EmbeddingBagConfig], seed: int | None) -> None:
    """Refuse a seed that is none, and tables whose rows cannot be made one by one from it.

    Raises:
        ValueError: the message says what to change.
    """
    if seed is not None and not 0 <= seed < 1 << 64:
        raise ValueError(f"seed {seed} is outside 0 to 2**64 - 1")
    for table in tables if seed is not None else ():
        made = table.init_fn
        if made is not None and getattr(made, "func", None) is not torch.nn.init.uniform_:
            raise ValueError(
                f"table {table.name} has an init_fn, which fills a whole table where rows here are made one by one: "
                "use weight_init_min and weight_init_max, or load rows with load_rows or load_state_dict"
            )


def _inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    # LLVM turns blocks into vector lanes only if the call is gone before it starts: 0.25 thousand million values/s else
    made: Callable[..., Any] = numba.njit(nogil=True, inline="always")(function)
    return made


@_inlined
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
def _fill(ids: NDArray[np.int64], out: NDArray[np.float32], key: Key, stream: np.uint32, scale: np.float32) -> None:
    for i in range(ids.size):
        row = np.uint64(ids[i])
        low, high = np.uint32(row), np.uint32(row >> _HALF)
        for block in range(out.shape[1] // 4):
            words = philox((np.uint32(block), low, high, stream), key)
            column = 4 * block
            # the upper 24 bits, signed, are exact in fp32: one rounding, in the product
            out[i, column] = np.float32(np.int32(words[0]) >> _SPARE_BITS) * scale
            out[i, column + 1] = np.float32(np.int32(words[1]) >> _SPARE_BITS) * scale
            out[i, column + 2] = np.float32(np.int32(words[2]) >> _SPARE_BITS) * scale
            out[i, column + 3] = np.float32(np.int32(words[3]) >> _SPARE_BITS) * scale
