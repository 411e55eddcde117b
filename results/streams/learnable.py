"""What a DLRM learns in one epoch of a synthetic stream, and how much of it the number of embedding rows decides.

    nice python results/streams/learnable.py [--datasets avazu,...] [--seeds 0,1] [--scale small] [--out FILE]
    nice python results/streams/learnable.py --datasets mlperf_dlrm_v2,criteo_kaggle_bags

The three one-hot datasets are the default; the multi-hot workloads are asked for by name. For each dataset and seed it
trains, each time from the start, on the same epoch:

- `all rows`: every table whole, in `full_gpu`;
- `10 % of rows`, `1 % of rows`: ids folded into so many rows per table (id modulo rows, as hashed ids are);
- `no embeddings`: the control that pools zeros, so that the dense features alone remain.

The AUROC is that on the first batches of the test split. Two optima stand beside it: the stated one, which is the
AUROC of the true click probabilities over the whole stream, and that of the true probabilities on the same samples. By
chance one test set is easier than another, for the model and for the true probabilities alike; so the gap is to the
second. A dataset passes where `all rows` is within 0.02 of the optimum and `no embeddings` loses 0.03 or more against
`all rows`; the exit code is 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # before torch loads libgomp, as the harness's workers do

import pandas as pd
import torch
from torch import Tensor
from torchmetrics.classification import BinaryAUROC
from torchrec import KeyedJaggedTensor

from suite.records.scales import SCALES, Scale
from suite.run.cell.feed import in_process
from suite.run.cell.training import build_trainer, load_initial_rows, tables_of
from suite.run.plan import _learning_rate
from systems import registry
from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec
from workloads.batch import Batch, Split
from workloads.schema import DATASETS, SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload

GAP_BOUND = 0.02
LOSS_BOUND = 0.03
TEST_SAMPLES = 400_000
EPS = 1e-8
RUN_STEPS = 50  # batches made ahead at a time


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to train: which system, and the share of rows that ids are folded into."""

    name: str
    system: str
    rows: float


ALL_ROWS = Kind(name="all rows", system="full_gpu", rows=1.0)
TENTH = Kind(name="10 % of rows", system="full_gpu", rows=0.1)
HUNDREDTH = Kind(name="1 % of rows", system="full_gpu", rows=0.01)
NO_EMBEDDINGS = Kind(name="no embeddings", system="no_embeddings", rows=1.0)
KINDS = (ALL_ROWS, TENTH, HUNDREDTH, NO_EMBEDDINGS)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One epoch.

    Attributes:
        stated: AUROC that the workload states as the best.
        optimum: AUROC of the true probabilities on the test samples.
        auroc: AUROC of the trained model on the same samples.
        train_s, data_s: Seconds of the steps, and of making their batches.
    """

    dataset: str
    kind: str
    seed: int
    optimizer: str
    lr: float
    rows: int
    steps: int
    samples: int
    stated: float
    optimum: float
    auroc: float
    train_s: float
    data_s: float

    @property
    def gap(self) -> float:
        """Optimum minus AUROC."""
        return self.optimum - self.auroc


class FoldedWorkload:
    """A synthetic stream whose ids are folded into a share of each table's rows, 1 row at least."""

    def __init__(self, workload: SyntheticWorkload, *, share: float) -> None:
        self._workload = workload
        self.batch_size = workload.batch_size
        self.dense_columns = workload.dense_columns
        self.tables = tuple((name, max(1, round(rows * share))) for name, rows in workload.tables)
        self._rows = torch.tensor([rows for _, rows in self.tables])

    def batch(self, index: int, split: Split = Split.TRAIN) -> Batch:
        batch = self._workload.batch(index, split)
        features = batch.features
        rows = self._rows.repeat_interleave(torch.tensor(features.length_per_key()))
        folded = KeyedJaggedTensor(
            keys=features.keys(),
            values=features.values() % rows,
            lengths=features.lengths(),
            offsets=features.offsets(),
            stride=features.stride(),
        )
        return Batch(dense=batch.dense, features=folded, labels=batch.labels)


def train_epoch(
    dataset: str,
    kind: Kind,
    *,
    scale: Scale,
    steps: int,
    optimizer: OptimizerKind,
    seed: int,
    test_samples: int = TEST_SAMPLES,
) -> Result:
    """Train on the first batches of the training split, each once, then rank the first ones of the test split."""
    stream = SyntheticWorkload.create(dataset, batch_size=scale.batch_size, seed=seed, max_rows=scale.max_rows)
    workload = FoldedWorkload(stream, share=kind.rows) if kind.rows < 1 else stream
    tables = tables_of(workload, scale.embedding_dim)
    lr = _learning_rate(scale, optimizer.value, dataset, None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    system = registry.load(registry.Variant.parse(kind.system))(
        SystemSpec(
            tables=tables,
            optimizer=SparseOptimizer(kind=optimizer, lr=lr, eps=EPS),
            device=device,
            budget=CacheRatio(ratio=1.0),
            batch_lookups=stream.batch_lookups,
            frequencies={},
            parameters={},
        )
    )
    load_initial_rows(system, seed=seed)
    trainer = build_trainer(
        system,
        workload,
        bottom_mlp=scale.bottom_mlp,
        top_mlp=scale.top_mlp,
        seed=seed,
        feed=in_process(workload, device),
        total_steps=steps,
    )
    runs = [trainer.run(min(RUN_STEPS, steps - start)) for start in range(0, steps, RUN_STEPS)]
    batches = range(-(-test_samples // scale.batch_size))
    labels = [stream.batch(index, Split.TEST).labels for index in batches]
    return Result(
        dataset=dataset,
        kind=kind.name,
        seed=seed,
        optimizer=optimizer.value,
        lr=lr,
        rows=sum(rows for _, rows in workload.tables),
        steps=steps,
        samples=steps * scale.batch_size,
        stated=stream.best_auroc,
        optimum=_auroc((stream.probabilities(index, Split.TEST) for index in batches), labels),
        auroc=_auroc((trainer.logits(workload.batch(index, Split.TEST)).sigmoid().cpu() for index in batches), labels),
        train_s=sum(run.duration_s for run in runs),
        data_s=sum(run.data_s for run in runs),
    )


def _auroc(scores: Iterator[Tensor], labels: Sequence[Tensor]) -> float:
    metric = BinaryAUROC()
    for score, label in zip(scores, labels, strict=True):
        metric.update(score, label.int())
    return float(metric.compute())


def failures(results: Sequence[Result]) -> list[str]:
    """What does not hold, in words."""
    said = []
    whole = {(result.dataset, result.seed): result for result in results if result.kind == ALL_ROWS.name}
    for key, result in whole.items():
        if result.gap > GAP_BOUND:
            said.append(f"{key}: {result.gap:.4f} below the optimum, more than {GAP_BOUND}")
    for result in results:
        full = whole.get((result.dataset, result.seed))
        if result.kind == NO_EMBEDDINGS.name and full and full.auroc - result.auroc < LOSS_BOUND:
            said.append(f"{(result.dataset, result.seed)}: without embeddings {full.auroc - result.auroc:.4f} are lost")
    return said


def show(results: Sequence[Result]) -> None:
    """Print the table."""
    lines = [
        {
            "dataset": result.dataset,
            "seed": result.seed,
            "trained with": result.kind,
            "rows": f"{result.rows:,}",
            "samples": f"{result.samples:,}",
            "stated": f"{result.stated:.4f}",
            "optimum": f"{result.optimum:.4f}",
            "AUROC": f"{result.auroc:.4f}",
            "gap": f"{result.gap:.4f}",
            "train s": f"{result.train_s:.0f}",
            "data s": f"{result.data_s:.0f}",
        }
        for result in results
    ]
    sys.stdout.write(pd.DataFrame(lines).to_string(index=False) + "\n")


def main() -> int:
    """Train, print and store; 1 where a bound fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(DATASETS), help="default: %(default)s")
    parser.add_argument("--seeds", default="0", help="default: %(default)s")
    parser.add_argument("--scale", default="small", choices=list(SCALES), help="default: %(default)s")
    parser.add_argument("--epoch-samples", type=int, help="default: the scale's")
    parser.add_argument("--optimizer", default="rowwise_adagrad", choices=[kind.value for kind in OptimizerKind])
    parser.add_argument("--kinds", default=",".join(kind.name for kind in KINDS), help="default: %(default)s")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--out", type=Path, help="write the results as JSON after every epoch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
    scale = SCALES[arguments.scale]
    if arguments.epoch_samples:
        scale = replace(scale, epoch_samples=arguments.epoch_samples)
    if scale.epoch_samples is None:
        parser.error(f"--scale {scale.name}: its epoch is the published one; give --epoch-samples")
    datasets, wanted = arguments.datasets.split(","), arguments.kinds.split(",")
    if unknown := set(datasets) - set(SCHEMAS):
        parser.error(f"--datasets {','.join(sorted(unknown))}: choose from {', '.join(SCHEMAS)}")
    if unknown := set(wanted) - {kind.name for kind in KINDS}:
        parser.error(f"--kinds {','.join(sorted(unknown))}: choose from {', '.join(kind.name for kind in KINDS)}")
    results: list[Result] = []
    for dataset in datasets:
        for seed in map(int, arguments.seeds.split(",")):
            for kind in (kind for kind in KINDS if kind.name in wanted):
                results.append(
                    train_epoch(
                        dataset,
                        kind,
                        scale=scale,
                        steps=scale.epoch_samples // scale.batch_size,
                        optimizer=OptimizerKind(arguments.optimizer),
                        seed=seed,
                    )
                )
                if arguments.out:
                    record = [asdict(result) | {"gap": result.gap} for result in results]
                    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(results)
    for failure in failures(results):
        sys.stdout.write(failure + "\n")
    return 1 if failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
