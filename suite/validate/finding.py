"""What is said of a record file: where, and what."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 60


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a record, or worth a warning.

    Attributes:
        where: The place in the file, as in `turns.system_s[1][3]`; empty for the file itself.
        what: What was found there, and what belongs there.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


def shown(value: object) -> str:
    """A value in a few words, on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
