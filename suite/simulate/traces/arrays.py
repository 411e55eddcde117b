"""Arrays in `.npy` and `.npz`, mapped into memory where they are not compressed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import cast

import numpy as np

from suite.simulate.traces.sources import Bags, Integers, OneHot, Source, check_integers, names_of, unreadable
from workloads.errors import DataError

_ZIP_HEADER_BYTES = 30


def open_npz(path: Path) -> tuple[Source, list[int] | None]:
    """The source in a `.npz`, and the rows of every table if the file says.

    Raises:
        DataError: the file cannot be read, or its arrays are no trace.
    """
    arrays = _members(path)
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
    """The array in a `.npy`, mapped. Raises `DataError` if the file cannot be read."""
    try:
        return cast(Integers, np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise unreadable(path, error) from error


def _members(path: Path) -> dict[str, Integers]:
    """The arrays of a `.npz` by name: mapped where they are not compressed, which `np.load` does not do."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            return {name: _member(path, archive, entry, file) for name, entry in entries.items()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise unreadable(path, error) from error


def _member(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: io.BufferedReader) -> Integers:
    if entry.compress_type != zipfile.ZIP_STORED:
        with archive.open(entry) as packed:
            return cast(Integers, np.lib.format.read_array(packed, allow_pickle=False))
    # name and extra field have lengths of their own in front of the data
    file.seek(entry.header_offset)
    header = file.read(_ZIP_HEADER_BYTES)
    file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), io.SEEK_CUR)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject or not np.prod(shape):
        file.seek(entry.header_offset)
        with archive.open(entry) as plain:
            return cast(Integers, np.lib.format.read_array(plain, allow_pickle=False))
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order="F" if fortran else "C")
    return cast(Integers, mapped)
