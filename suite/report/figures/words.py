"""Words in figures: lines that fit, and sizes of type."""

from __future__ import annotations

import re
import textwrap

TITLE, LABEL, SMALL = 9.0, 7.0, 6.5
"""Sizes of type, in points."""
LETTER_IN = 0.62 / 72
"""Mean width of a letter of one point: of DejaVu Sans, rounded up, so that wrapped lines fit."""
NAME_LETTERS = 32
"""In a line of a system's name beside a panel."""


def wrapped(text: str, letters: int = NAME_LETTERS) -> str:
    """A system's name or a sentence in lines of so many letters; names break behind brackets and commas first."""
    pieces = [
        part
        for piece in re.findall(r"[^\s,\[]*[\s,\[]*", text)
        for part in ([piece] if len(piece.rstrip()) <= letters else re.findall(r"[^_.:=]*[_.:=]*", piece))
    ]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1] + piece.rstrip()) > letters:
            lines.append("")
        lines[-1] += piece
    return "\n".join(part for line in lines for part in textwrap.wrap(line.rstrip(), letters))


def letters_in(width_in: float, size: float) -> int:
    """Letters of a size in points that fit a width."""
    return int(width_in / (size * LETTER_IN))


def bytes_words(size: float, _position: object = None) -> str:
    """Bytes for a tick or a label, in decimal units."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.3g} B" if size else "0"
