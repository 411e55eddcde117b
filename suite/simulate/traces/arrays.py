"""Arrays in `.npy` and `.npz`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from zipfile import BadZipFile

import numpy as np

from suite.simulate.traces.sources import Bags, Integers, OneHot, Source, check_integers, names_of
from workloads.errors import DataError


def open_npz(path: Path) -> tuple[Source, list[int] | None]:
    """The source in a `.npz`, and the rows of every table if the file says.

    Raises:
        DataError: the file cannot be read, or its arrays are no trace.
    """
    with _readable(path), np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Integers] = dict(archive)
    unknown = sorted(set(arrays) - {"ids", "offsets", "rows", "names"})
    if "ids" not in arrays or unknown:
        raise DataError(
            f"{path} holds {', '.join(arrays) or 'nothing'}: give ids, with offsets, rows and names as needed, and "
            "nothing else"
        )
    rows = _rows(path, arrays["rows"]) if "rows" in arrays else None
    names = [str(name) for name in arrays["names"].reshape(-1)] if "names" in arrays else None
    source: Source
    if "offsets" in arrays:
        tables = len(rows) if rows is not None else len(names or [])
        if not tables:
            raise DataError(f"{path}: ids with offsets: give rows or names too, they say how many tables there are")
        source = Bags(path, arrays["ids"], arrays["offsets"], names_of(path, names, tables=tables))
    else:
        source = OneHot(path, arrays["ids"], names)
    if rows is not None and len(rows) != len(source.names):
        raise DataError(f"{path}: rows of {len(rows)} tables, ids of {len(source.names)}: give one per table")
    return source, rows


def _rows(path: Path, rows: Integers) -> list[int]:
    check_integers(path, "rows", rows)
    sizes = [int(size) for size in rows.reshape(-1)]
    if any(size < 1 for size in sizes):
        raise DataError(f"{path}: rows has {min(sizes)}: every table has at least 1")
    return sizes


def open_npy(path: Path) -> Integers:
    """The array in a `.npy`, mapped into memory. Raises `DataError` if the file cannot be read."""
    with _readable(path):
        return cast(Integers, np.load(path, mmap_mode="r", allow_pickle=False))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"--trace: cannot read {path}: {error}") from error
