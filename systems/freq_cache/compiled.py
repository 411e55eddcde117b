"""Loops compiled by numba, where torch and numpy would pass over the same memory several times.

Compiled loops release the GIL, so that planning and copying threads run in parallel with the training thread. On a
thread that torch computes on with several threads, as many share a large work; the calling thread is one of them, and
waits for the others. On a `Worker` none do: each of them would take the GIL from the training thread several times.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from systems.threads import Worker, interrupts_deferred


def compiled(function: Callable[..., Any], **options: bool) -> Callable[..., Any]:
    """Compile a function at its first call, and keep the machine code beside the source if that folder is writable.

    The function must not allocate memory: it is compiled without numba's run time, which would count references inside
    the loops and take longer than their work.
    """
    try:
        made: Any = numba.njit(nogil=True, cache=True, _nrt=False, **options)(function)
    except RuntimeError:  # the folder is not writable: compiled anew in every process
        made = numba.njit(nogil=True, _nrt=False, **options)(function)
    made.compile = interrupts_deferred()(made.compile)  # LLVM's objects, half made, would abort the process later
    if not made._cache.cache_path:
        return made  # type: ignore[no-any-return]
    # A loop holds copies of the functions that it calls, but numba compares the source of the loop's own file only:
    # after a change of the others it would load old machine code. The version is compared before anything is loaded,
    # which a module that has moved since would make fail.
    file, digest = made._cache._cache_file, _digest(Path(function.__code__.co_filename).parent)
    file._version = f"{numba.__version__} {digest}"
    # numba writes the index before the code that it names: of another version, that has another name
    file._data_name_pattern = file._data_name_pattern.replace(".nbc", f".{digest[:12]}.nbc")
    save = made._cache.save_overload

    def save_if_there_is_room(*code: Any) -> None:
        with suppress(OSError):
            save(*code)

    made._cache.save_overload = save_if_there_is_room
    return made  # type: ignore[no-any-return]


inlined = partial(compiled, forceinline=True)
"""Compile a part of loops, which is copied into each loop that calls it: a call would take longer than its work."""


@cache
def _digest(folder: Path) -> str:
    """SHA-256 digest of all sources whose functions a loop of a folder may inline: that folder's and this package's."""
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *Path(__file__).parent.rglob("*.py")}):
        digest.update(source.read_bytes())
    return digest.hexdigest()


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, array: Any, _index: Any) -> Any:
    """Prefetch the cache line of `array[index]`, a one-dimensional array. Any index is safe."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, arguments[0])
        (step,) = cgutils.unpack_tuple(builder, found.strides, 1)
        address = builder.add(builder.ptrtoint(found.data, ir.IntType(64)), builder.mul(arguments[1], step))
        int32, byte = ir.IntType(32), builder.inttoptr(address, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [byte.type, int32, int32, int32])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        for_writing, keep, data = int32(1), int32(3), int32(1)
        builder.call(function, [byte, for_writing, keep, data])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def bit_length(_context: Any, _number: Any) -> Any:
    """Number of bits of an int64, as Python's `int.bit_length`; 0 for 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        zero_is_defined = ir.IntType(1)(0)
        return builder.sub(ir.IntType(64)(64), builder.ctlz(arguments[0], zero_is_defined))

    return numba.types.int64(numba.types.int64), generate


_AHEAD = 32


@inlined
def prefetch_ahead(array, rows, i):
    """Prefetch the cache line of `array[row]` for the row `_AHEAD` iterations after the `i`-th."""
    if i + _AHEAD < rows.size:
        prefetch(array, rows[i + _AHEAD])


@compiled
def gather(table, rows, found):
    """Gather an element of a table for each row. Rows are not negative: unsigned indices spare numba's wraparound."""
    for i in range(rows.size):
        prefetch_ahead(table, rows, i)
        found[i] = table[np.uint64(rows[i])]


def in_parts(work: Callable[[slice], object], items: int, *, most: int) -> None:
    """Call `work` for the parts of `items` items, the first on this thread and each other one on a thread of its own.

    There are as many parts as torch has threads here, but at most `most`. Returns when all are done, or raises the
    exception of the first part that failed.
    """
    parts = max(1, min(most, torch.get_num_threads()))
    first, *rest = [slice(items * part // parts, items * (part + 1) // parts) for part in range(parts)]
    if not rest:
        work(first)
        return
    with interrupts_deferred():  # no part may go on after this
        others = [_helpers().submit(partial(work, part)) for part in rest]
        try:
            work(first)
        finally:
            for other in others:
                other.wait()
    for other in others:
        other.result()


@cache
def _helpers() -> Worker:
    return Worker("cache-part", threads=os.cpu_count() or 1)


os.register_at_fork(after_in_child=_helpers.cache_clear)  # a forked process has none of its parent's threads


_ROWS_AHEAD = 12
"""Number of rows by which the loop prefetches."""
_LINE_BYTES = 64
_PART_BYTES = 1 << 19
"""Minimum bytes per thread."""


def put_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write `values`, `[n, width]` or `[n]` of its type, to `table[rows]`, int32 or int64 `[n]`, each once.

    Raises:
        IndexError: a row is outside the table; other rows may be written.
    """
    if table.device.type != "cpu":
        table.index_copy_(0, rows.long(), values)
        return
    places, numbers, lot = _array(table), rows.numpy(), _array(values)
    bad: list[int] = []

    def put(part: slice) -> None:
        place = _put(places, numbers[part], lot[part], _LINE_BYTES // lot.itemsize)
        if place >= 0:
            bad.append(part.start + place)

    in_parts(put, numbers.size, most=lot.nbytes // _PART_BYTES)
    if bad:
        raise IndexError(f"a table of {len(table):,} rows has no row {numbers[min(bad)]}")


def _array(rows: Tensor):
    """Rows `[n, width]` for the loop; fp16 is viewed as int16, because numba has no fp16."""
    known = (rows.view(torch.int16) if rows.itemsize == 2 else rows).numpy()
    return known if known.ndim > 1 else known[:, None]


@compiled
def _put(table, rows, values, line):
    """Returns the index of the first row that is outside the table, or -1."""
    for i in range(rows.size):
        if i + _ROWS_AHEAD < rows.size:
            ahead = table[np.uint64(rows[i + _ROWS_AHEAD])]
            for column in range(0, values.shape[1], line):
                prefetch(ahead, column)
        if not 0 <= rows[i] < table.shape[0]:
            return i
        row = np.uint64(rows[i])
        for column in range(values.shape[1]):
            table[row, column] = values[i, column]
    return -1
