"""The published figures: drawn from records and simulations alone, under one style, as SVG and PNG."""

import io
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from suite.records.store import write_atomically
from suite.report.figures import approximate, disk, memory, misses, quality, throughput
from suite.report.source import Source
from suite.tables.figure_style import look

DRAWN: dict[str, Callable[[Source], Figure | None]] = {
    "throughput_by_bytes": throughput.draw,
    "throughput_by_budget": disk.draw,
    "quality_over_time": quality.draw,
    "miss_ratio": misses.draw,
    "memory": memory.draw,
    "quality_by_bytes": approximate.draw,
}
"""In the order of the page. None: there is nothing to draw."""
_DPI, _SHADES, _NEARLY_WHITE = 300, 128, 250


def figures(source: Source) -> dict[str, Figure]:
    """The figures by name; one without data is left out."""
    drawn = {}
    for name, draw in DRAWN.items():
        with look(f"report {name}"):
            figure = draw(source)
        if figure is not None:
            drawn[name] = figure
    return drawn


def write_figures(source: Source, folder: Path) -> list[Path]:
    """Write every figure as SVG, with its text as text, and as PNG of 300 dpi: the same bytes for the same source.

    Raises:
        StoreError: one cannot be written; the earlier file is still whole.
    """
    paths = []
    for name, figure in figures(source).items():
        with look(f"report {name}", svg_text=True):
            # once for both formats
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            for suffix, content in (("svg", _svg(figure)), ("png", _png(figure))):
                paths.append(folder / f"{name}.{suffix}")
                write_atomically(paths[-1], content)
    return paths


def _svg(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()


def _png(figure: Figure) -> bytes:
    """With a palette: figures have few colours, and a third of the bytes will do."""
    drawn, content = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    picture = Image.open(drawn).convert("RGB").quantize(_SHADES, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    # a shade of the palette is the mean of its pixels: paper has to stay white
    picture.putpalette([255 if shade > _NEARLY_WHITE else shade for shade in picture.getpalette() or ()])
    picture.save(content, format="png", dpi=(_DPI, _DPI), optimize=True)
    return content.getvalue()
