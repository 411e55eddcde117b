"""In which order systems take their turns."""

from __future__ import annotations


def balanced_orders(systems: int) -> list[tuple[int, ...]]:
    """Orders to go through one after another, so that no system gains by its place or by who went before it.

    A Williams design (1949): every system takes every place equally often, and follows every other one equally often.

    Args:
        systems: How many take turns, at least 1.

    Returns:
        As many orders as there are systems, twice as many where their number is odd.
    """
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(systems)]
    orders = [tuple((step + start) % systems for step in zigzag) for start in range(systems)]
    return orders + [order[::-1] for order in orders] if systems % 2 and systems > 1 else orders
