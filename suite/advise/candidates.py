"""What is weighed: systems in their variants, at several cache sizes, each predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from suite.advise.calibrate.kernels import RowType
from suite.advise.case import Case
from suite.advise.costs import Counts
from suite.advise.counts import Replays
from suite.advise.model import Costs, NotCalibrated, Prediction, predict
from suite.records.model import Model
from suite.simulate.models.model import CannotReplay
from systems.contract import CacheRatio, DeviceBytes, Verdict

SYSTEMS = {
    "cpu": (
        "full_gpu",
        "torchrec_uvm",
        "reference",
        "freq_cache[policy=static]",
        "freq_cache[policy=lfu]",
        "freq_cache[policy=lru]",
        "freq_cache[policy=lfu,look_ahead=16]",
    ),
    "cuda": (
        "full_gpu",
        "fbgemm_uvm",
        "fbgemm_uvm_caching[policy=lru]",
        "fbgemm_uvm_caching[policy=lfu]",
        "fbgemm_uvm_caching[prefetch=on]",
        "freq_cache[policy=static]",
        "freq_cache[policy=lfu]",
        "freq_cache[policy=static,look_ahead=16]",
        "freq_cache[policy=lfu,look_ahead=16]",
    ),
}
"""What `all` weighs by device. On a CPU fbgemm's UVM variants are what `full_gpu` is."""


@dataclass(frozen=True)
class Candidate:
    """A predicted case, with what it was predicted from."""

    case: Case
    counts: Counts
    prediction: Prediction


class Refusal(Model):
    """A case that cannot be predicted, or cannot run."""

    system: str
    row_type: RowType
    reason: str


def cases(
    pattern: Case, *, systems: Sequence[str], row_types: Sequence[RowType], ratios: Sequence[float], budget: int | None
) -> Iterator[Case]:
    """Every case to be weighed: caches at every ratio and, with a device budget, as large as it allows.

    Args:
        pattern: Gives tables and shape.
        systems: Their variants.
        row_types: Each is tried.
        ratios: Cached rows as a share of all.
        budget: Bytes of the device, the model included.
    """
    for system in systems:
        for row_type in row_types:
            case = Case(
                system=system,
                row_type=row_type,
                shape=pattern.shape,
                tables=pattern.tables,
                batch_lookups=pattern.batch_lookups,
                budget=CacheRatio(ratio=1.0),
            )
            if not case.caches:
                yield case
                continue
            for ratio in ratios:
                yield case.with_budget(CacheRatio(ratio=ratio))
            left = 0 if budget is None else budget - case.shape.model_bytes
            if left > 0:
                yield case.with_budget(DeviceBytes(total_bytes=left))


def weigh(
    found: Sequence[Case],
    replays: Replays,
    costs: Costs,
    *,
    on_case: Callable[[int, int], None] = lambda done, all: None,
) -> tuple[list[Candidate], list[Refusal]]:
    """Predict every case; those that cannot run are refused with the reason, once per system and reason."""
    weighed: list[Candidate] = []
    refused: dict[tuple[str, RowType, str], Refusal] = {}
    for number, case in enumerate(found):
        on_case(number, len(found))
        reason = ""
        if case.support.verdict is not Verdict.YES:
            reason = case.support.reason
        else:
            try:
                counts = replays.counts(case)
                weighed.append(Candidate(case, counts, predict(case, counts, costs)))
            except (CannotReplay, NotCalibrated) as error:
                reason = str(error)
        if reason:
            refused[case.system, case.row_type, reason] = Refusal(
                system=case.system, row_type=case.row_type, reason=reason
            )
    return weighed, list(refused.values())
