"""Compiles loops with numba, where numpy would pass over the same memory many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, and keep the machine code beside the source where that can be written.

    Arithmetic is IEEE's, operation by operation, so that values are the same on every machine: nothing is reordered,
    and no product is merged with a sum. The loop runs on the calling thread and does not hold the GIL.
    """
    try:
        made: Callable[..., Any] = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        made = numba.njit(nogil=True, error_model="numpy")(function)
    return made
