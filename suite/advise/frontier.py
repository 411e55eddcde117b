"""The smallest device at which a system still trains, and what takes most of it there."""

from dataclasses import replace

from suite.advise.case import CACHING, Case, Weighed
from systems.contract import CacheRatio, DeviceBytes, Tier, Verdict
from systems.freq_cache import sizing


class Frontier(Weighed):
    """Where a system begins to train."""

    device_bytes: int
    host_bytes: int
    """What its rows, state and index take on the host."""
    dominated_by: str
    """The purpose that takes most of the device there."""


def frontier(case: Case, *, largest: int) -> Frontier | None:
    """The smallest device memory at which a case's system trains; None: `case.support` refuses it at any.

    `largest` is the most distinct rows of a batch: our cache trains within a byte budget only if they fit together.
    """
    at_any = replace(case, budget=CacheRatio(ratio=1.0))
    if at_any.support.verdict is not Verdict.YES:
        return None
    least = replace(case, budget=DeviceBytes(total_bytes=least_embedding_bytes(at_any, largest=largest)))
    sizes = least.device_bytes
    return Frontier(
        system=case.system,
        row_type=case.row_type,
        device_bytes=sum(sizes.values()),
        host_bytes=least.system_class.required_bytes(least.spec).get(Tier.HOST, 0),
        dominated_by=max(sizes, key=lambda purpose: sizes[purpose]),
    )


def least_embedding_bytes(case: Case, *, largest: int) -> int:
    """The smallest device budget for the embeddings of a case: 1 at least, as a budget must be."""
    if case.name == "freq_cache":
        return sizing.budget_for(case.spec, case.group, min(largest, case.group.rows), {})
    if case.name in CACHING and not case.caches:
        return case.spec.row_bytes + case.spec.state_bytes
    return max(1, case.system_class.required_bytes(case.spec).get(Tier.DEVICE, 0))
