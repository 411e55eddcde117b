"""Slow tiers, which keep the rows of a cache as records. Nothing here depends on slots or on a planner."""
