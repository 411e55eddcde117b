"""Loops compiled by numba: the few that torch and numpy would make in several passes over the same memory.

All of them release the GIL, so that planning and copying run beside training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile at the first call, and keep the machine code beside the source where that can be written.

    The function must not allocate: without numba's run time no reference is counted inside a loop, which would take
    longer than the loop's work.
    """
    return cast(Function, numba.njit(nogil=True, cache=True, _nrt=False)(function))


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, array: Any, _index: Any) -> Any:  # noqa: ANN401 - numba's own protocol
    """Ask for the cache line of `array[index]`, a one-dimensional array; any index is safe, for nothing is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.ptrtoint(data, ir.IntType(64))
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        offset = builder.mul(arguments[1], ir.Constant(ir.IntType(64), size))
        byte = builder.inttoptr(builder.add(address, offset), ir.IntType(8).as_pointer())
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte.type, int32, int32, int32])
        function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
            builder.module, kind, "llvm.prefetch.p0"
        )
        builder.call(function, [byte, int32(1), int32(3), int32(1)])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64), generate
