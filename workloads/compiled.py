"""Compiles loops with numba, where numpy would pass over the same memory many times."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, and keep the machine code beside the source where that can be written.

    Arithmetic is IEEE's, operation by operation, so that values are the same on every machine: nothing is reordered,
    and no product is merged with a sum. The loop runs on the calling thread and does not hold the GIL.
    """
    try:
        made: Any = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]
    # A loop holds copies of the functions that it calls, but numba compares the source of the loop's own file only.
    made._cache._cache_file._source_stamp = _digest()
    return made  # type: ignore[no-any-return]


@cache
def _digest() -> bytes:
    """Of all sources that a loop may have copies of: those that have loops."""
    sources = (source.read_bytes() for source in sorted(Path(__file__).parent.rglob("*.py")))
    return hashlib.sha256(b"".join(source for source in sources if b"@compiled" in source)).digest()
