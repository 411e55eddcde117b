"""The smallest device at which a system still trains, and what takes most of it there."""

from dataclasses import replace
from functools import partial

from suite.advise.case import CACHING, Case
from suite.advise.weighed import Weighed
from systems.contract import CacheRatio, DeviceBytes, Tier, Verdict
from systems.freq_cache import sizing

_REASONS = {
    "all rows": "every row lies on the device",
    "optimizer state of all rows": "the optimizer state of every row lies on the device",
    "cached rows": "the distinct rows of the largest batch must be on the device together",
    "staging": "rows on their way in and out are staged on the device",
    "slots of the ids of a batch": "the device is told the slot of every id of a batch",
    "index and row-wise state of all rows": "fbgemm keeps 4 B or more on the device for every row, cached or not",
    "row-wise state of all rows": "fbgemm keeps row-wise optimizer state of every row on the device",
    "model and activations": "the model and a batch's activations lie on the device, and outweigh the embeddings there",
    "what the system says it needs": "the system says so itself",
}


class Frontier(Weighed):
    """Where a system begins to train."""

    device_bytes: int | None
    """None: it does not train here at all."""
    host_bytes: int
    """What its rows, state and index take on the host."""
    dominated_by: str
    why: str


def frontier(case: Case, *, largest: int) -> Frontier:
    """The smallest device memory at which a case's system trains, and why.

    `largest` is the most distinct rows of a batch: our cache trains within a byte budget only if they fit together.
    """
    of_system = partial(Frontier, system=case.system, row_type=case.row_type)
    at_any = replace(case, budget=CacheRatio(ratio=1.0))
    if at_any.support.verdict is not Verdict.YES:
        return of_system(device_bytes=None, host_bytes=0, dominated_by="", why=at_any.support.reason)
    least = replace(case, budget=DeviceBytes(total_bytes=least_embedding_bytes(at_any, largest=largest)))
    sizes = least.device_bytes
    most = max(sizes, key=lambda purpose: sizes[purpose])
    return of_system(
        device_bytes=sum(sizes.values()),
        host_bytes=least.system_class.required_bytes(least.spec).get(Tier.HOST, 0),
        dominated_by=most,
        why=_REASONS[most],
    )


def least_embedding_bytes(case: Case, *, largest: int) -> int:
    """The smallest device budget for the embeddings of a case: 1 at least, as a budget must be."""
    if case.name == "freq_cache":
        return sizing.budget_for(case.spec, case.group, min(largest, case.group.rows), {})
    if case.name in CACHING and not case.caches:
        return case.spec.row_bytes + case.spec.state_bytes
    return max(1, case.system_class.required_bytes(case.spec).get(Tier.DEVICE, 0))
