"""Temporal structure of synthetic streams, as named tracks: `criteo_kaggle@drift`, `avazu@growth[start=0.3]`.

Without a track the samples of a stream are independent draws from one law. A track says how the stream depends on time.
Time is the number of a sample: it is 0 at the beginning of the training split, and goes on through validation and test.
Tables of at least `MOVING_ROWS` published rows follow the track, smaller ones do not change, and neither does the id
that stands for a missing value. What the defaults rest on is in docs/synthetic.md.
"""

import re
from collections.abc import Mapping
from dataclasses import fields

from workloads import DataError
from workloads.streams.drift import Drift
from workloads.streams.growth import Growth
from workloads.streams.track import Track

MOVING_ROWS = 1000
"""Published rows from which a table follows a track."""

_NAME = re.compile(r"^(?P<name>\w+)(?:\[(?P<parameters>[^\[\]]*)\])?$")

TRACKS: Mapping[str, type[Track]] = {track.name: track for track in (Drift, Growth)}
"""Tracks by name; their parameters have defaults."""


def split_name(name: str) -> tuple[str, Track | None]:
    """Read `dataset`, `dataset@track` or `dataset@track[parameter=value,...]`.

    Raises:
        DataError: no such track or parameter, or a value out of range.
    """
    dataset, sign, text = name.partition("@")
    if not sign:
        return dataset, None
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
    return dataset, track(**values)


def label(track: Track) -> str:
    """The track as `split_name` reads it: its name, and the parameters that are not the default ones."""
    values = {known.name: getattr(track, known.name) for known in fields(track)}
    changed = [f"{known.name}={values[known.name]!r}" for known in fields(track) if values[known.name] != known.default]
    return f"{track.name}[{','.join(changed)}]" if changed else track.name
