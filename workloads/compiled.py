"""Loops compiled by numba, for what numpy would do in many passes over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the machine code beside the source where that can be written.

    Arithmetic is IEEE's, operation by operation, so that values are the same on every machine: nothing is reordered,
    and no product is merged with a sum. The loop runs on the calling thread, without the GIL.
    """
    try:
        made: Callable[..., Any] = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        made = numba.njit(nogil=True, error_model="numpy")(function)
    return made


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(_context: Any, value: Any) -> Any:
    """The bits of a float64, as int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return numba.types.int64(numba.types.float64), generate


@intrinsic  # type: ignore[untyped-decorator]
def float_of(_context: Any, value: Any) -> Any:
    """The float64 that has the bits of an int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return numba.types.float64(numba.types.int64), generate
