"""Alternating timing of systems: groups, orders, timing workers and results."""
