"""The paper's published rows beside what the model says of systems close to theirs."""

from __future__ import annotations

from collections.abc import Sequence

from suite.advise.advice import PublishedComparison
from suite.advise.case import Case
from suite.advise.counts import Replays
from suite.advise.described import DescribedCosts
from suite.advise.hardware import Hardware
from suite.advise.model import predict
from suite.records.published import published_rows
from systems.contract import CacheRatio

DIM = 128
"""Width of the published tables."""

CLOSEST = {"ColossalAI": "freq_cache[policy=static]", "torchrec": "full_gpu"}
"""ColossalAI's cache ranks rows by frequency and fetches between steps, as ours does without look-ahead, but plans on
the device with sorts that are not in the model. torchrec's tables of Criteo Kaggle and Avazu lay all on the device, see
`suite.records.published.NOTE`; of Criteo 1TB four fifths did."""

NOTE = (
    "modelled: bytes and flops of systems close to theirs on the described machine; published: measured by the "
    "authors, input pipeline included, which the model leaves out. torch multiplied in tf32 by default until 1.11."
)


def beside_published(
    case: Case, replays: Replays, hardware: Hardware, *, workload: str
) -> Sequence[PublishedComparison]:
    """Compare with every published row of a workload; none unless setting and device are the paper's."""
    found = []
    for row in published_rows(workload):
        same = row.batch_size == case.shape.batch_size and case.shape.embedding_dim == DIM
        if not same or row.system not in CLOSEST or not hardware.name.startswith(row.gpu):
            continue
        model = Case(
            system=CLOSEST[row.system],
            row_type=case.row_type,
            shape=case.shape,
            tables=case.tables,
            batch_lookups=case.batch_lookups,
            budget=CacheRatio(ratio=row.cache_ratio),
        )
        counts = replays.counts(model)
        fp32, tf32 = (
            1 / predict(model, counts, DescribedCosts(hardware, matmul=matmul)).step_s for matmul in ("fp32", "tf32")
        )
        found.append(
            PublishedComparison(
                published_system=row.system,
                published_steps_per_s=row.steps_per_s,
                modelled_system=CLOSEST[row.system],
                modelled_fp32_steps_per_s=fp32,
                modelled_tf32_steps_per_s=tf32,
                published_hardware=row.hardware,
                source=row.source,
            )
        )
    return found
