"""Temporal structure of synthetic streams, as named tracks: `criteo_kaggle@drift`, `avazu@flash[peak=0.3]`.

Without a track the samples of a stream are independent draws from one law. A track says how the stream depends on time.
Time is the number of a sample: it is 0 at the beginning of the training split, and goes on through validation and test.
Tables of at least `MOVING_ROWS` published rows follow the track, smaller ones do not change, and neither does the id
that stands for a missing value. What the defaults rest on is in docs/tracks.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from workloads.errors import DataError

MOVING_ROWS = 1000
"""Published rows from which a table follows a track."""

_NAME = re.compile(r"^(?P<name>\w+)(?:\[(?P<parameters>[^\[\]]*)\])?$")


def _parameter(default: float, low: float, high: float) -> Any:  # noqa: ANN401 - as dataclasses.field
    return field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True, kw_only=True)
class Track:
    """How a stream depends on time; the fields are its parameters.

    Raises:
        DataError: a parameter is out of range.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the parameters."""
        for parameter in fields(self):
            value, (low, high) = getattr(self, parameter.name), parameter.metadata["range"]
            if not low <= value <= high:
                raise DataError(f"{parameter.name} of @{self.name} is {value}: give {low:g} to {high:g}")


@dataclass(frozen=True, kw_only=True)
class Recency(Track):
    """Ids come back sooner than by chance: some are copied from an earlier sample of the stream.

    A lookup copies with `probability`. The number of samples back is log-uniform, `2 ** octaves` at most. What is
    copied may be a copy itself; which ids are frequent does not change. The first samples have nothing to copy.
    """

    name: ClassVar[str] = "recency"
    probability: float = _parameter(0.1, 0.0, 0.9)
    octaves: int = _parameter(20, 1, 40)


@dataclass(frozen=True, kw_only=True)
class Drift(Track):
    """Which ids are popular changes; how popular the first, the second, ... of them is does not.

    Each popular place of a table is held by `takers` ids in turn, each for one `lifetime`, in training splits; while it
    waits, an id is rare. Every place changes hands at times of its own. Of the most popular ids a share of `1 -
    distance / lifetime` is left after a distance below a lifetime, and then none until every taker had its turn.
    """

    name: ClassVar[str] = "drift"
    lifetime: float = _parameter(0.1, 1e-3, 1e3)
    takers: int = _parameter(16, 2, 1 << 16)


@dataclass(frozen=True, kw_only=True)
class FlashCrowd(Track):
    """At known times a few rare ids become hot for a while, then fade.

    Time is cut into periods of `every` samples, a multiple of 4. After a quiet quarter of a period a crowd comes to
    each large table with probability `tables`: for a quarter of the period a share `peak` of the table's lookups goes
    to `ids` rare ids, chosen anew for every crowd, then the share falls in a straight line to 0 at the end. The other
    lookups follow the law.
    """

    name: ClassVar[str] = "flash"
    every: int = _parameter(1 << 19, 4, 1 << 40)
    peak: float = _parameter(0.15, 0.0, 1.0)
    ids: int = _parameter(256, 1, 1 << 20)
    tables: float = _parameter(0.5, 0.0, 1.0)

    def __post_init__(self) -> None:
        """Check the parameters, and that a period has four quarters."""
        super().__post_init__()
        if self.every % 4:
            raise DataError(f"every of @{self.name} is {self.every}: give a multiple of 4, a crowd has four quarters")


@dataclass(frozen=True, kw_only=True)
class Growth(Track):
    """New ids keep appearing: of the rare ones a share `start` exists when training begins, all when it ends.

    Ids appear in an order that has nothing to do with their frequency, at a constant rate of `(1 - start) * rare ids /
    training samples` per table and sample. An id that does not exist yet is never drawn; its share goes to the rare ids
    that do, in proportion. The heavy hitters of a table, the explicit head of its law, exist from the beginning.
    """

    name: ClassVar[str] = "growth"
    start: float = _parameter(0.5, 0.25, 1.0)


TRACKS: Mapping[str, type[Track]] = {track.name: track for track in (Recency, Drift, FlashCrowd, Growth)}
"""Tracks by name; their parameters have defaults."""


def split_name(name: str) -> tuple[str, Track | None]:
    """Read `dataset`, `dataset@track` or `dataset@track[parameter=value,...]`.

    Raises:
        DataError: no such track or parameter, or a value out of range.
    """
    dataset, sign, text = name.partition("@")
    return dataset, parse_track(text) if sign else None


def parse_track(text: str) -> Track:
    """Read `track` or `track[parameter=value,...]`; errors as of `split_name`."""
    match = _NAME.match(text.strip())
    if match is None or match["name"] not in TRACKS:
        raise DataError(f"unknown track {text!r}: choose one of {', '.join(TRACKS)}, or leave out the @")
    track = TRACKS[match["name"]]
    kinds = {known.name: int if isinstance(known.default, int) else float for known in fields(track)}
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in (match["parameters"] or "").split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in kinds:
            raise DataError(f"@{track.name} has no parameter {key!r}: it has {', '.join(kinds)}")
        if key in values:
            raise DataError(f"@{text} gives {key} twice")
        try:
            values[key] = kinds[key](value)
        except ValueError:
            wanted = "a whole number" if kinds[key] is int else "a number"
            raise DataError(f"{key} of @{track.name} is {value!r}: give {wanted}") from None
    return track(**values)


def label(track: Track) -> str:
    """The track as `parse_track` reads it: its name, and the parameters that are not the default ones."""
    values = {known.name: getattr(track, known.name) for known in fields(track)}
    changed = [f"{known.name}={values[known.name]!r}" for known in fields(track) if values[known.name] != known.default]
    return f"{track.name}[{','.join(changed)}]" if changed else track.name
