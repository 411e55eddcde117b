"""Scattered writes of rows to a table.

On a device torch does it. On the host torch's `index_copy_` waits for the memory of one row after another, on one
thread. The loop here prefetches memory, on as many threads as torch uses.
"""

import numpy as np
import torch
from torch import Tensor

from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.threads import in_parts, parts_of

_AHEAD = 12
"""Number of rows by which the loop prefetches."""
_LINE_BYTES = 64
_PART_BYTES = 1 << 19
"""Minimum bytes per thread."""


def put_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write `values`, `[n, width]` or `[n]`, to `table[rows]`, int32 or int64 `[n]`, each once.

    Raises:
        IndexError: a row is outside the table; other rows may be written.
        ValueError: `values` are of another shape or type.
    """
    if values.shape != (len(rows), *table.shape[1:]) or values.dtype is not table.dtype:
        of = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"{len(rows):,} rows of a table of {table.dtype} {list(table.shape)} are not given by {of}")
    if table.device.type != "cpu":
        table.index_copy_(0, rows.long(), values)
        return
    places, numbers, lot = _array(table), rows.numpy(), _array(values)
    parts = parts_of(lot.nbytes, least=_PART_BYTES)
    edges = [numbers.size * part // parts for part in range(parts + 1)]
    bad = [-1] * parts

    def put(part: int) -> None:
        mine = slice(edges[part], edges[part + 1])
        bad[part] = _put(places, numbers[mine], lot[mine], _LINE_BYTES // lot.itemsize)

    in_parts(put, parts)
    for first, place in zip(edges, bad, strict=False):
        if place >= 0:
            raise IndexError(f"a table of {len(table):,} rows has no row {numbers[first + place]}")


def _array(rows: Tensor):
    """Rows `[n, width]` for the loop; fp16 is viewed as int16, because numba has no fp16."""
    known = (rows.view(torch.int16) if rows.itemsize == 2 else rows).numpy()
    return known if known.ndim > 1 else known[:, None]


@compiled
def _put(table, rows, values, line):
    """Returns the index of the first row that is outside the table, or -1."""
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            ahead = table[np.uint64(rows[i + _AHEAD])]
            for column in range(0, values.shape[1], line):
                prefetch(ahead, column)
        if not 0 <= rows[i] < table.shape[0]:
            return i
        row = np.uint64(rows[i])
        for column in range(values.shape[1]):
            table[row, column] = values[i, column]
    return -1
