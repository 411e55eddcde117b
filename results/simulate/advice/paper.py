"""The paper's published rates beside what the model of a described machine says of the systems closest to theirs.

    python results/simulate/advice/paper.py

prints the table of docs/advise.md: criteo_kaggle and criteo_1tb at full size on an A100, with matrix products in fp32
and in tf32 (torch's default until 1.11). ColossalAI's cache ranks rows by frequency and fetches between steps, as ours
does without look-ahead, but it plans on the device, which is not in the model. torchrec's tables of Criteo Kaggle lay
all on the device, see `suite.records.published.NOTE`; of Criteo 1TB four fifths did.
"""

import argparse
import sys

from suite.advise.case import Case
from suite.advise.counts import Replays, steady_span
from suite.advise.described import DescribedCosts, Matmul, load_hardware
from suite.advise.prediction import predict
from suite.records.published import published_rows
from suite.run.cell.stream import open_workload
from suite.run.plan import Options, plan_cells
from suite.simulate.trace import WorkloadTrace
from systems.registry import Variant

CLOSEST = {"ColossalAI": "freq_cache[policy=static]", "torchrec": "full_gpu"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="criteo_kaggle,criteo_1tb")
    parser.add_argument("--batches", type=int, help="to replay; default: 150")
    asked = parser.parse_args()
    hardware = load_hardware("a100")
    sys.stdout.write("| workload | published | | modelled as | fp32 | tf32 |\n|---|---|--:|---|--:|--:|\n")
    for name in asked.workloads.split(","):
        for row in published_rows(name):
            if row.system not in CLOSEST:
                continue
            options = Options(
                systems=(Variant.parse(CLOSEST[row.system]),),
                workloads=(name,),
                device="cuda",
                scale="full",
                batch_size=row.batch_size,
                cache_ratios=() if row.cache_ratio is None else (row.cache_ratio,),
            )
            cell = plan_cells(options, datasets=None, host_bytes=1 << 40)[0][0]
            workload = open_workload(cell)
            trace = WorkloadTrace(workload)
            case = Case.of(cell, workload)
            counts = Replays(trace, steady_span(trace, batches=asked.batches)).counts(case)
            fp32, tf32 = (
                1 / predict(case, counts, DescribedCosts(hardware, matmul=matmul)).step_s for matmul in Matmul
            )
            line = f"| {name} | {row.system} | {row.steps_per_s:g} | `{case.system}` | {fp32:.0f} | {tf32:.0f} |"
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
