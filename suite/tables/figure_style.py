"""How figures look: one style, and colours, marks and dashes that stay apart in grey and for all eyes."""

from contextlib import AbstractContextManager
from typing import Final

import matplotlib as mpl

BLACK: Final = "#000000"
GREY: Final = "#7F7F7F"
COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#7F7F7F", "#882255", "#332288", "#999933", "#AA4499", "#117733",
    "#661100", "#DDAA33",
)  # fmt: skip
"""Those of Okabe and Ito (jfly.uni-koeln.de/color), less black and yellow, then some of Tol's (SRON/EPS/TN/09-002)."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def look(salt: str, *, svg_text: bool = False) -> AbstractContextManager[None]:
    """The style to draw and to save under.

    Args:
        salt: Names inside an SVG follow from it: the same for the same figure, different where several share a page.
        svg_text: Text in an SVG stays text, in the reader's font; otherwise it becomes outlines.
    """
    return mpl.rc_context(
        {
            "svg.hashsalt": salt,
            "svg.fonttype": "none" if svg_text else "path",
            "font.size": 9,
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans", "Verdana"],  # as wide as each other
            "text.parse_math": False,  # a name may hold a dollar sign
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.linewidth": 0.6,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.5,
            "hatch.linewidth": 0.5,
        }
    )
