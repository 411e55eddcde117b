"""Limits, tolerances and sizes that pages state are those of the code."""

import pytest

from suite import doctor
from suite.compare.compare import QUANTITIES
from suite.records.environment import WORKERS_OPENMP
from suite.records.scales import AGREE, FULL, SMALL
from suite.run import agreement, conditions
from suite.run.cell import experiment, feed, host_budget, verify
from suite.tables import rows, verdict
from systems.approximate.composed import ComposedSystem
from systems.contract import EmbeddingSystem
from tests.docs.commands import ROOT
from workloads.batch import Split
from workloads.schema import SCHEMAS

MLPERF = SCHEMAS["mlperf_dlrm_v2"]
TABLES = [rows for _, rows in MLPERF.categorical]
KAGGLE = SCHEMAS["criteo_kaggle"]
CHANGES = {quantity.field: quantity for quantity in QUANTITIES}


def per_cent(share: float) -> str:
    return f"{100 * share:g} %"


PROTOCOL = [
    f"others take {per_cent(doctor._OTHERS_WARNING)} (problem: {per_cent(doctor._OTHERS_PROBLEM)}) of the CPUs",
    f"a hypervisor takes {per_cent(doctor._STOLEN_WARNING)}",
    f"takes {doctor._PACE_WARNING} times as long or more in slow tenths of a second",
    f"Turns were disturbed where others took {per_cent(conditions._OTHERS_SHARE)} of the CPUs, a hypervisor took "
    f"{per_cent(conditions._STOLEN_SHARE)}",
    f"the GPU for {per_cent(conditions._THROTTLED_SHARE)} of the time",
    f"tables of at most {EmbeddingSystem.verified_rows} rows, batches of {verify.BATCH_SIZE}, and a cache of half the",
    f"the tables have {ComposedSystem.verified_rows:,} rows, because smaller ones are kept whole",
    f"After {agreement._EARLY_STEPS} steps and when a cell has trained, its system reads {agreement.ROWS:,} rows",
    f"rows of the first {agreement._EARLY_STEPS} steps are compared",
    f"a row may be off by {per_cent(agreement._ALLOWED)} of what training moved it",
    f"optimizer state by {per_cent(agreement._ALLOWED)} of its size",
    f"On a CUDA device it is {per_cent(agreement._ALLOWED_ON_CUDA)}",
    f"misses per step change by more than {per_cent(experiment._STEADY)} between halves of the counted steps",
    f"the baseline's beside it differ by more than {per_cent(AGREE)} and half the ratio's interval",
    f"was more than {per_cent(AGREE)} off its pace alone",
    f"Workers start with `GOMP_SPINCOUNT={WORKERS_OPENMP['GOMP_SPINCOUNT']}`",
    f"at least {feed._CORES_PER_PRODUCER} physical cores",
    f"a quarter of the cores, {feed._MOST_PRODUCERS} at most",
    f"above {per_cent(rows.WAIT_SHARE)} of the time the table has a note",
]
RESULTS = [
    f"rounded outward to steps of {per_cent(verdict.STEP / 100)}",
    f"contains 1 and allows a difference above {per_cent(verdict.WIDEST / 100)}, nothing can be said",
    f"an AUROC more than {verdict.AUROC_TOLERANCE} from the baseline's",
    f"AUROC and accuracy (beyond {CHANGES['auroc'].absolute:.4f}",
    f"device memory ({per_cent(CHANGES['device_rows_bytes'].share)}); peak host memory "
    f"({per_cent(CHANGES['host_peak_rss_bytes'].share)}); hit rate ({100 * CHANGES['hit_rate'].absolute:g} points); "
    f"bytes moved per step ({per_cent(CHANGES['fetched_bytes_per_step'].share)})",
]
SYNTHETIC = [
    f"({len(TABLES)} tables, {sum(TABLES):,} rows in full, at most {max(TABLES) // 10**6} million each)",
    f"DLRM v2: {sum(MLPERF.hotness or ())} ids per sample, always",
    f"has {SMALL.epoch_samples:,} samples in {SMALL.epoch_samples // SMALL.batch_size:,} steps",
]
DISK = [f"batches of the same shape with {host_budget._FEW_ROWS} rows a table"]
SIMULATION = [f"{KAGGLE.table_rows / 1e6:.1f} M rows, batch {FULL.batch_size:,}"]
DATASETS = [
    f"| {words}: {schema.splits[Split.TRAIN]:,} of {sum(schema.splits.values()):,} |"
    for words, schema in (("six of seven equal chunks", KAGGLE), ("all but the last tenth", SCHEMAS["avazu"]))
]
PAGES = {
    "datasets": DATASETS,
    "simulation": SIMULATION,
    "protocol": PROTOCOL,
    "results": RESULTS,
    "synthetic": SYNTHETIC,
    "disk": DISK,
}


@pytest.mark.parametrize(("page", "sentence"), [(page, one) for page, said in PAGES.items() for one in said])
def test_limit_of_a_page_is_that_of_the_code(page: str, sentence: str) -> None:
    assert sentence in " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
