"""What is said of a record file: where, and what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SHOWN = 40
_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

Place = Sequence[str | int]
"""Names and indices that lead to a value."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a record, or worth a warning.

    Attributes:
        where: JSON path, as in `measurement.timing.window_s[3]`; empty for the file itself.
        what: What was found there, and what belongs there.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


def json_path(place: Place) -> str:
    """`measurement.timing.window_s[3]`; a name that is no plain word is quoted, as in `environment["a b"]`."""
    parts = []
    for step in place:
        plain = isinstance(step, str) and step and not set(step) - set(_PLAIN)
        parts.append(f".{step}" if plain else f"[{json.dumps(step)}]")
    return "".join(parts).removeprefix(".")


def shown(value: object) -> str:
    """A value in a few words, on one line."""
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "an array" if value else "an empty array"
        case int() if abs(value) >= 10**_SHOWN:
            return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def leaves(content: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], object]]:
    """Every value of a JSON document that holds no other, with its place."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from leaves(value, (*place, name))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from leaves(value, (*place, index))
    else:
        yield place, content
