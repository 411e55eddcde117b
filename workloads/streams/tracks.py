"""Temporal structure of synthetic streams, as named tracks: `criteo_kaggle@drift`, `avazu@growth`.

Without a track the samples of a stream are independent draws from one law. A track says how the stream depends on time.
Time is the number of a sample: it is 0 at the beginning of the training split, and goes on through validation and test.
Tables of at least `MOVING_ROWS` published rows follow the track, smaller ones do not change, and neither does the id
that stands for a missing value. What the figures of the tracks rest on is in docs/synthetic.md.
"""

from collections.abc import Mapping

from workloads import DataError
from workloads.streams.drift import Drift
from workloads.streams.growth import Growth
from workloads.streams.track import Track

MOVING_ROWS = 1000
"""Published rows from which a table follows a track."""

TRACKS: Mapping[str, type[Track]] = {track.name: track for track in (Drift, Growth)}


def split_name(name: str) -> tuple[str, Track | None]:
    """Read `dataset` or `dataset@track`.

    Raises:
        DataError: no such track.
    """
    dataset, sign, track = name.partition("@")
    if not sign:
        return dataset, None
    if track not in TRACKS:
        raise DataError(f"unknown track {track!r}: choose one of {', '.join(TRACKS)}, or leave out the @")
    return dataset, TRACKS[track]()
