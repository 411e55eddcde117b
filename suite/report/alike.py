"""Whether two published files say the same: to the byte, but for the last digits of what is drawn.

Processors of different makes round logarithms differently, which moves a line by a millionth of a point. Such a figure
is not out of date. Numbers in tables have no such freedom.
"""

from __future__ import annotations

import filecmp
import itertools
import re
from pathlib import Path

import numpy as np
from matplotlib import image

_POINTS = 0.01
"""Coordinates may differ by so much."""
_SHADE = 0.002
"""Pixels may differ by so much on average, of 1 from black to white."""
_DRAWING = re.compile(r"(<svg\b.*?</svg>)", re.DOTALL)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_NAME = re.compile(r"\b[a-z]{1,3}[0-9a-f]{10}\b")
"""What matplotlib calls a part of a drawing: a digest of its coordinates."""


def alike(one: Path, other: Path) -> bool:
    """Whether two files of one name say the same."""
    if filecmp.cmp(one, other, shallow=False):
        return True
    match one.suffix:
        case ".png":
            return _pictures_alike(one, other)
        case ".svg" | ".html":
            texts = [path.read_text(encoding="utf-8") for path in (one, other)]
            return _texts_alike(*(_DRAWING.split(text) for text in texts))
        case _:
            return False


def _texts_alike(some: list[str], others: list[str]) -> bool:
    """Drawings, which stand at odd places, nearly equal; what is between them equal."""
    return len(some) == len(others) and all(
        _drawings_alike(a, b) if place % 2 else a == b for place, (a, b) in enumerate(zip(some, others, strict=True))
    )


def _drawings_alike(one: str, other: str) -> bool:
    parts = [_NUMBER.split(_named_in_order(drawing)) for drawing in (one, other)]
    if len(parts[0]) != len(parts[1]):
        return False
    return all(
        abs(float(a) - float(b)) <= _POINTS if place % 2 else a == b
        for place, (a, b) in enumerate(zip(*parts, strict=True))
    )


def _named_in_order(drawing: str) -> str:
    """The drawing with its digests replaced by their order of appearance."""
    numbers = itertools.count()
    order: dict[str, int] = {}
    return _NAME.sub(lambda found: f"part {order.setdefault(found[0], next(numbers))}", drawing)


def _pictures_alike(one: Path, other: Path) -> bool:
    pictures = [image.imread(path)[..., :3] for path in (one, other)]
    if pictures[0].shape != pictures[1].shape:
        return False
    return float(np.abs(pictures[0].astype(np.float64) - pictures[1]).mean()) <= _SHADE
