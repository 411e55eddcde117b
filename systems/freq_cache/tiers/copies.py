"""Rows copied from and to random places of a table.

On a device torch does it. On the host its `index_select` and `index_copy_` wait for the memory of one row after
another, and the second has one thread. The loops here ask for memory ahead, on as many threads as torch computes with.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.threads import in_parts, parts_of

_AHEAD = 12
"""How many rows ahead memory is asked for."""
_LINE_BYTES = 64
_PART_BYTES = 1 << 20
"""The least that is worth a thread."""


def get_rows(table: Tensor, rows: Tensor, out: Tensor) -> None:
    """Write `table[rows]` to `out`.

    Args:
        table: `[t, width]` or `[t]`, of rows of a multiple of 4 bytes.
        rows: int32 or int64 `[n]`.
        out: `[n, width]` or `[n]`, of the same type.

    Raises:
        IndexError: the table has no such row; some of `out` may be written.
    """
    if table.device.type == "cpu":
        _copy(_get, table, rows, out)
    elif out.is_contiguous():
        torch.index_select(table, 0, rows, out=out)
    else:
        out.copy_(table.index_select(0, rows))


def put_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write `values` to `table[rows]`, each row once. Shapes and errors are those of `get_rows`."""
    if table.device.type == "cpu":
        _copy(_put, table, rows, values)
    else:
        table.index_copy_(0, rows.long(), values)


def _copy(loop, table: Tensor, rows: Tensor, values: Tensor) -> None:
    wide = _in_words(table, torch.int64) and _in_words(values, torch.int64)
    word = torch.int64 if wide else torch.int32
    places, numbers, lot = _words(table, word), rows.numpy(), _words(values, word)
    parts = parts_of(values.nbytes, least=_PART_BYTES)
    failed = [-1] * parts

    def copy(part: int) -> None:
        mine = slice(numbers.size * part // parts, numbers.size * (part + 1) // parts)
        found = loop(places, numbers[mine], lot[mine], _LINE_BYTES // word.itemsize)
        failed[part] = found if found < 0 else mine.start + found

    in_parts(copy, parts)
    if (found := max(failed)) >= 0:
        raise IndexError(f"a table of {len(table):,} rows has no row {numbers[found]}")


def _in_words(rows: Tensor, word: torch.dtype) -> bool:
    width = rows.shape[1] if rows.dim() > 1 else 1
    return all(count * rows.itemsize % word.itemsize == 0 for count in (width, rows.stride(0), rows.storage_offset()))


def _words(rows: Tensor, word: torch.dtype):
    return (rows if rows.dim() > 1 else rows.unsqueeze(1)).view(word).numpy()


@compiled
def _get(table, rows, out, line):
    """Returns the place of a row that the table does not have, or -1."""
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            ahead = table[np.uint64(rows[i + _AHEAD])]
            for column in range(0, out.shape[1], line):
                prefetch(ahead, column)
        if not 0 <= rows[i] < table.shape[0]:
            return i
        row = np.uint64(rows[i])
        for column in range(out.shape[1]):
            out[i, column] = table[row, column]
    return -1


@compiled
def _put(table, rows, values, line):
    """Returns the place of a row that the table does not have, or -1."""
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
