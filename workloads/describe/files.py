"""Writes a description into a directory: JSON, CSV and a figure."""

import tempfile
from pathlib import Path

from workloads.describe.description import Description, TableFigures
from workloads.describe.tables import tables_frame
from workloads.errors import DataError
from workloads.manifest import MANIFEST

# Okabe and Ito's colours, which stay apart for the colour-blind; dashes keep them apart without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


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
    try:
        with tempfile.TemporaryDirectory(prefix=".describe-", dir=folder) as name:
            made = Path(name)
            (made / "description.json").write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")
            tables_frame(description).to_csv(made / "tables.csv", index=False, lineterminator="\n")
            draw(description, made)
            return [path.replace(folder / path.name) for path in sorted(made.iterdir())]
    except OSError as error:
        raise DataError(f"cannot write to --out {folder}: {error.strerror}; earlier files there are intact") from error


def draw(description: Description, folder: Path) -> None:
    """Draw accesses by rank, of all tables together and of the five with most ids seen; equal bytes for equal data."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    pooled, *tables = description.tables
    largest = sorted(tables, key=lambda table: -table.distinct)
    look = mpl.rc_context(
        {"svg.hashsalt": "describe", "font.family": "DejaVu Sans", "axes.grid": True, "grid.color": "#DDDDDD"}
    )
    with look:
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.loglog(*_points(pooled), color="black", linewidth=2.0, label=pooled.table)
        for table, colour, dashes in zip(largest, _COLOURS, _DASHES, strict=False):
            axes.loglog(*_points(table), color=colour, linestyle=dashes, linewidth=1.2, label=table.table)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set(xlabel="rank of the id", ylabel="accesses", title=f"{description.dataset}: accesses by rank")
        axes.legend()
        figure.savefig(folder / "rank_frequency.svg", metadata={"Date": None, "Creator": None})


def _points(table: TableFigures) -> tuple[list[int], list[int]]:
    """Ranks, and the accesses at each."""
    return [rank for rank, _ in table.curve], [accesses for _, accesses in table.curve]
