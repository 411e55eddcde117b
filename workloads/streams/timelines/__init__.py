"""What a track does to the tables of a stream: one file per kind of track, and `timeline_of`, which chooses among them.

A stream draws a popularity rank for every lookup. A timeline turns the rank of an instant into an identity: the number
that the row id and the effect on labels come from. In a table that keeps still, an id's identity is its rank.
"""

from workloads.streams.timelines.crowds import FlashTimeline
from workloads.streams.timelines.drift import DriftTimeline
from workloads.streams.timelines.growth import GrowthTimeline
from workloads.streams.timelines.recency import RecencyTimeline
from workloads.streams.timelines.timeline import Timeline, Words
from workloads.streams.tracks import Drift, FlashCrowd, Growth, Recency, Track
from workloads.streams.zipf import RankLaw

_TIMELINES: dict[type[Track], type[Timeline]] = {
    Recency: RecencyTimeline,
    Drift: DriftTimeline,
    FlashCrowd: FlashTimeline,
    Growth: GrowthTimeline,
}


def timeline_of(track: Track | None, law: RankLaw, *, pinned: int, keys: Words, train_samples: int) -> Timeline:
    """The timeline of a track on a table of a stream; arguments as for `Timeline`."""
    kind = Timeline if track is None else _TIMELINES[type(track)]
    return kind(track, law, pinned=pinned, keys=keys, train_samples=train_samples)
