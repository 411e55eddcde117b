"""What ranks cannot share, refused before anything is planned."""

from __future__ import annotations

import os

from suite.records.options import BadOption

MOST_RANKS = 64
"""Which share the batches of verification, too."""


def check_ranks(ranks: int | None, *, nodes: int, rendezvous: str | None, other_sizes: bool) -> None:
    """Refuse numbers of ranks and machines that do not go together. Powers of two: halves of a mean add up exactly.

    Args:
        ranks: On all machines; None: no ranks are asked for.
        nodes: Machines.
        rendezvous: Where they meet.
        other_sizes: The sizes of caches are budgets of bytes.

    Raises:
        BadOption: the first that cannot be, or this is one of several processes that a launcher started.
    """
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("", "1"):
        raise BadOption(f"WORLD_SIZE is {started}: give --ranks {started} to one process, which starts the ranks")
    if ranks is None:
        if nodes != 1 or rendezvous is not None:
            raise BadOption("--nnodes and --rdzv-endpoint are for ranks: give --ranks")
        return
    if not 1 <= ranks <= MOST_RANKS or ranks & (ranks - 1):
        raise BadOption(f"--ranks: {ranks} is out of range, it must be a power of two, {MOST_RANKS} at most")
    if not 1 <= nodes <= ranks or ranks % nodes:
        raise BadOption(f"--nnodes: {ranks} ranks are not to be had from {nodes} machines with as many each")
    if nodes > 1 and rendezvous is None:
        raise BadOption("--nnodes: several machines need a place to meet: give --rdzv-endpoint host:port")
    if other_sizes:
        raise BadOption("--ranks takes a --cache-ratio, and neither --tier disk nor --device-budget")


def check_batch(batch_size: int, ranks: int | None) -> None:
    """Refuse a batch that ranks cannot have parts of one length of.

    Raises:
        BadOption: with the remedy.
    """
    if batch_size % (ranks or 1):
        raise BadOption(f"--ranks: {ranks} ranks cannot share a batch of {batch_size}: give another --batch-size")
