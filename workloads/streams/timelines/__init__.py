"""What a track does to the tables of a stream: one file per track.

A stream draws a popularity rank for every lookup. A track turns the rank of an instant into an identity: the number
that the row id and the effect on labels come from. In a table that keeps still, an id's identity is its rank.
"""
