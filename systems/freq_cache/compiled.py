"""Loops compiled by numba: the few that torch and numpy would make in several passes over the same memory.

All of them release the GIL, so that planning and copying run beside training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the machine code beside the source where that can be written.

    The function must not allocate: without numba's run time no reference is counted inside a loop, which would take
    longer than the loop's work.
    """
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a part of a compiled loop: to call it with arrays would take longer than moving a row."""
    return _compiled(function, forceinline=True)


def _compiled(function: Callable[..., Any], **options: bool) -> Callable[..., Any]:
    try:
        made: Callable[..., Any] = numba.njit(nogil=True, cache=True, _nrt=False, **options)(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        made = numba.njit(nogil=True, _nrt=False, **options)(function)
    return made


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, array: Any, _index: Any) -> Any:
    """Ask for the cache line of `array[index]`, a one-dimensional array; any index is safe, for nothing is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, arguments[0])
        _ask(builder, found, [arguments[1]])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_in(_context: Any, array: Any, _row: Any, _column: Any) -> Any:
    """Ask for the cache line of `array[row, column]`, a two-dimensional array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, arguments[0])
        _ask(builder, found, arguments[1:])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64, numba.types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_context: Any, target: Any, _i: Any, _j: Any, source: Any, _k: Any, _l: Any, _count: Any) -> Any:
    """`target[i, j : j + count] = source[k, l : l + count]`, uint8; the two do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = []
        for at in (0, 3):
            array = context.make_array(signature.args[at])(context, builder, arguments[at])
            address = _address(builder, array, arguments[at + 1 : at + 3])
            pointers.append(builder.inttoptr(address, ir.IntType(8).as_pointer()))
        kinds = [pointers[0].type, pointers[1].type, ir.IntType(64)]
        move = builder.module.declare_intrinsic("llvm.memcpy", kinds)
        volatile = ir.IntType(1)(0)
        builder.call(move, [*pointers, arguments[6], volatile])
        return context.get_dummy_value()

    index = numba.types.int64
    return numba.types.void(target, index, index, source, index, index, index), generate


@intrinsic  # type: ignore[untyped-decorator]
def bit_length(_context: Any, _number: Any) -> Any:
    """Bits of a number from its highest that is set on; that of 0 is 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        zero_is_defined = ir.IntType(1)(0)
        return builder.sub(ir.IntType(64)(64), builder.ctlz(arguments[0], zero_is_defined))

    return numba.types.int64(numba.types.int64), generate


def _ask(builder: Any, array: Any, index: Any) -> None:
    int32, int8 = ir.IntType(32), ir.IntType(8)
    byte = builder.inttoptr(_address(builder, array, index), int8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [byte.type, int32, int32, int32])
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    for_writing, keep, data = int32(1), int32(3), int32(1)
    builder.call(function, [byte, for_writing, keep, data])


def _address(builder: Any, array: Any, index: Any) -> Any:
    address = builder.ptrtoint(array.data, ir.IntType(64))
    for at, step in zip(index, cgutils.unpack_tuple(builder, array.strides, len(index)), strict=True):
        address = builder.add(address, builder.mul(at, step))
    return address
