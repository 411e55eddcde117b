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
class Answer:
    """Of one check.

    Attributes:
        seen: One sentence or more on what was found.
        remedy: What to do about it. Beside `ok`: what to bear in mind.
    """

    level: Level
    seen: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level in (Level.PROBLEM, Level.WARNING) and not self.remedy:
            raise ValueError(f"a {self.level} needs a remedy: {self.seen}")


@dataclass(frozen=True)
class Finding:
    """An answer under the name of its check."""

    name: str
    level: Level
    seen: str
    remedy: str


class Unsaid(Exception):
    """The machine does not say; the text says why, in words that follow a colon."""


def ok(seen: str, note: str = "") -> Answer:
    """Nothing to do; a note is for what is as it is and should be borne in mind."""
    return Answer(Level.OK, seen, note)


def warning(seen: str, remedy: str) -> Answer:
    """Measuring is possible."""
    return Answer(Level.WARNING, seen, remedy)


def problem(seen: str, remedy: str) -> Answer:
    """Measuring makes no sense yet."""
    return Answer(Level.PROBLEM, seen, remedy)
