"""What a check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How bad it is, worst first."""

    PROBLEM = "problem"
    """Figures measured now would be wrong, or there would be none."""
    WARNING = "warning"
    """Figures would be noisier, slower or not comparable with others."""
    UNKNOWN = "unknown"
    """The machine does not say."""
    OK = "ok"


@dataclass(frozen=True)
class Finding:
    """The answer of one check.

    Attributes:
        seen: What was found, in one sentence or more.
        remedy: What to do about it. Beside `ok`: what to bear in mind.
    """

    level: Level
    seen: str
    remedy: str = ""


class Unsaid(Exception):
    """The machine does not say; the text says why."""


def ok(seen: str, note: str = "") -> Finding:
    """Nothing to do; a note is for what stays as it is and should be borne in mind."""
    return Finding(Level.OK, seen, note)


def warning(seen: str, remedy: str) -> Finding:
    """Measuring is possible."""
    return Finding(Level.WARNING, seen, remedy)


def problem(seen: str, remedy: str) -> Finding:
    """Measuring makes no sense yet."""
    return Finding(Level.PROBLEM, seen, remedy)
