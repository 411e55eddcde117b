"""Synthetic streams: laws of ids, draws, labels, fitted profiles, and tracks that change over time."""
