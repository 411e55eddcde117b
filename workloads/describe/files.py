"""Writes a description into a directory: JSON, CSV and a figure."""

from __future__ import annotations

import tempfile
from pathlib import Path

from workloads.describe.description import Description
from workloads.describe.tables import tables_frame
from workloads.errors import DataError
from workloads.manifest import MANIFEST


def check_output(folder: Path) -> None:
    """Make the output directory, before the work that is to go there.

    Raises:
        DataError: it holds prepared data, or cannot be made or written.
    """
    if (folder / MANIFEST).exists():
        raise DataError(f"--out {folder} holds prepared data: choose a directory of its own")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise DataError(f"--out {folder} cannot be written ({error.strerror}): choose another directory") from error


def write(description: Description, folder: Path) -> list[Path]:
    """Write every file; files of an earlier description are replaced only once all new ones are complete.

    Raises:
        DataError: they cannot be written.
    """
    from workloads.describe.figure import draw

    try:
        with tempfile.TemporaryDirectory(prefix=".describe-", dir=folder) as name:
            made = Path(name)
            (made / "description.json").write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")
            tables_frame(description).to_csv(made / "tables.csv", index=False, lineterminator="\n")
            draw(description, made)
            return [path.replace(folder / path.name) for path in sorted(made.iterdir())]
    except OSError as error:
        raise DataError(f"cannot write to --out {folder}: {error.strerror}; earlier files there are intact") from error
