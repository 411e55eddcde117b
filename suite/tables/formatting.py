"""Formats of numbers, and the style of figures. What does not exist is `n/a`, and nothing but 0 is printed as 0."""

import math
from contextlib import AbstractContextManager
from typing import Final

from pydantic import ByteSize

from suite.tables.statistics import Estimate

MISSING = "n/a"
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


def gigabytes(value: float) -> str:
    """Bytes in GB of 1e9."""
    return amount(value / 1e9)


def megabytes(value: float) -> str:
    """Bytes in MB of 1e6."""
    return amount(value / 1e6)


def amount(value: float | None, noise: float | None = None) -> str:
    """A number of any size with enough digits, never rounded to 0 when it is not.

    `noise` is a share of it; no digit is shown behind the first that so much noise moves.
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    return with_decimals(value, decimals(value, noise))


def decimals(value: float, noise: float | None = None) -> int:
    """Decimals that `amount` shows of a number other than 0; negative where noise moves digits before the point."""
    size = math.floor(math.log10(abs(value)))
    enough = 0 if size >= 3 else 1 if size == 2 else 2 if size >= -1 else 1 - size
    return max(-size, min(enough, -math.floor(math.log10(noise * abs(value))))) if noise else enough


def with_decimals(value: float, decimals: int) -> str:
    """A number rounded to so many decimals; a negative number of them rounds to tens, hundreds, ..."""
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def relative(ratio: Estimate | None, noise: float | None = None) -> str:
    """A ratio of speeds with its interval, in the digits that a noise floor allows."""
    if ratio is None or not math.isfinite(ratio.value):
        return MISSING
    if ratio.value == 1 and ratio.low is None:
        return "1"  # beside itself
    places = decimals(ratio.value, noise)
    value, low, high = (
        MISSING if bound is None else with_decimals(bound, max(places, decimals(bound, 1)))
        for bound in (ratio.value, ratio.low, ratio.high)
    )
    return f"{value} [{MISSING}]" if ratio.low is None else f"{value} [{low}, {high}]"


def duration(seconds: float, noise: float | None = None) -> str:
    """Seconds as `4.37s`, `49.2s`, `12m05s` or `1h40m`; the share `noise` as in `amount`."""
    if not math.isfinite(seconds):
        return MISSING
    if noise and seconds >= 10:
        seconds = round(seconds, decimals(seconds, noise))
    if seconds < 59.95:
        shown = amount(seconds, noise) if seconds < 10 else with_decimals(seconds, min(1, decimals(seconds, noise)))
        return f"{shown}s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}h{minutes:02d}m"


def binary_bytes(value: int) -> str:
    """Bytes in the largest binary unit that they fill: 67,108,864 is `64 MiB`."""
    return ByteSize(value).human_readable(separator=" ").replace(".0 ", " ")


def count(value: int) -> str:
    """A whole number, every digit of it."""
    return f"{value:,}"


def percent(value: float, decimals: int = 0) -> str:
    """A share of 1 in per cent, with more decimals where it would be rounded to nothing or to all."""
    while 0 < value < 1 and round(100 * value, decimals) in (0, 100):
        decimals += 1
    return f"{100 * value:.{decimals}f} %"


def score(value: float, noise: float | None = None) -> str:
    """AUROC or accuracy: to the first digit that `noise`, a share of it, moves, four at most; CSV has all."""
    digits = max(1, min(4, -math.floor(math.log10(noise * value)))) if noise else 3
    return f"{value:.{digits}f}"


def score_within(mean: Estimate) -> str:
    """A mean AUROC, or a difference of two, with its interval."""
    return score(mean.value) if mean.low is None else f"{mean.value:.4f} [{mean.low:.4f}, {mean.high:.4f}]"


def look(salt: str, *, svg_text: bool = False) -> AbstractContextManager[None]:
    """The style to draw and to save under.

    Args:
        salt: Names inside an SVG follow from it: the same for the same figure, different where several share a page.
        svg_text: Text in an SVG stays text, in the reader's font; otherwise it becomes outlines.
    """
    import matplotlib as mpl  # takes most of a second

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
