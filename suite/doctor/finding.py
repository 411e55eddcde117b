"""What a check says."""

import enum
from dataclasses import dataclass
from functools import partial


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


ok, warning, problem = (partial(Finding, level) for level in (Level.OK, Level.WARNING, Level.PROBLEM))
