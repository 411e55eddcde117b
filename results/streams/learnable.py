"""Quality of a DLRM after one epoch of a synthetic stream, and the share of it that embeddings decide.

    nice python results/streams/learnable.py [--datasets avazu,...] [--seeds 0,1] [--scale small] [--out FILE]
    nice python results/streams/learnable.py --datasets mlperf_dlrm_v2

The three one-hot datasets are the default; the multi-hot workload is asked for by name. For each dataset and seed it
trains, each time from the start, on the same epoch: with all rows (`full_gpu`), and with the control that pools zeros,
so that the dense features alone remain (`no_embeddings`).

The AUROC is that on the first batches of the test split. Two optima stand beside it: the stated one, which is the
AUROC of the true click probabilities over the whole stream, and that of the true probabilities on the same samples. By
chance one test set is easier than another, for the model and for the true probabilities alike; so the gap is to the
second. A dataset passes where `all rows` is within 0.02 of the optimum and `no embeddings` loses 0.03 or more against
`all rows`; the exit code is 1 where one does not.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # before torch loads libgomp, as the harness's workers do

import pandas as pd
import torch
from torch import Tensor
from torchmetrics.classification import BinaryAUROC

from suite.records.environment import capture
from suite.records.scales import SCALES, Scale
from suite.records.store import write_json
from suite.run.cell.feed import in_process
from suite.run.cell.training import Trainer, load_initial_rows, tables_of
from suite.run.plan import _learning_rate
from systems import registry
from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer, SystemSpec
from workloads.batch import Split
from workloads.schema import DATASETS, SCHEMAS
from workloads.streams.synthetic import SyntheticWorkload

GAP_BOUND = 0.02
LOSS_BOUND = 0.03
TEST_SAMPLES = 400_000
RUN_STEPS = 50  # batches made ahead at a time
ALL_ROWS, NO_EMBEDDINGS = "all rows", "no embeddings"
SYSTEMS = {ALL_ROWS: "full_gpu", NO_EMBEDDINGS: "no_embeddings"}


def train_epoch(
    dataset: str,
    kind: str,
    *,
    scale: Scale,
    optimizer: OptimizerKind,
    seed: int,
    lr: float | None = None,
    test_samples: int = TEST_SAMPLES,
) -> dict[str, Any]:
    """Train on the first batches of the training split, each once, then rank the first ones of the test split."""
    stream = SyntheticWorkload.create(dataset, batch_size=scale.batch_size, seed=seed, max_rows=scale.max_rows)
    lr = lr or _learning_rate(scale, optimizer.value, dataset, None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    system = registry.load(registry.Variant.parse(SYSTEMS[kind]))(
        SystemSpec(
            tables=tables_of(stream.tables, scale.embedding_dim),
            optimizer=SparseOptimizer(kind=optimizer, lr=lr, eps=1e-8),
            device=device,
            budget=CacheRatio(ratio=1.0),
            batch_lookups=stream.batch_lookups,
            frequencies={},
            parameters={},
        )
    )
    load_initial_rows(system, seed=seed)
    steps = scale.epoch_samples // scale.batch_size
    trainer = Trainer(
        system,
        stream,
        bottom_mlp=scale.bottom_mlp,
        top_mlp=scale.top_mlp,
        seed=seed,
        feed=in_process(stream, device),
        total_steps=steps,
    )
    runs = [trainer.run(min(RUN_STEPS, steps - start)) for start in range(0, steps, RUN_STEPS)]
    batches = range(-(-test_samples // scale.batch_size))
    labels = [stream.batch(index, Split.TEST).labels for index in batches]
    optimum = _auroc((stream.probabilities(index, Split.TEST) for index in batches), labels)
    auroc = _auroc((trainer.logits(stream.batch(index, Split.TEST)).sigmoid().cpu() for index in batches), labels)
    return {
        "dataset": dataset,
        "kind": kind,
        "seed": seed,
        "optimizer": optimizer.value,
        "lr": lr,
        "rows": sum(rows for _, rows in stream.tables),
        "steps": steps,
        "samples": steps * scale.batch_size,
        "stated": stream.best_auroc,
        "optimum": optimum,
        "auroc": auroc,
        "train_s": sum(run.duration_s for run in runs),
        "data_s": sum(run.data_s for run in runs),
        "gap": optimum - auroc,
    }


def _auroc(scores: Iterator[Tensor], labels: Sequence[Tensor]) -> float:
    metric = BinaryAUROC()
    for score, label in zip(scores, labels, strict=True):
        metric.update(score, label.int())
    return float(metric.compute())


def failures(results: Sequence[dict[str, Any]]) -> list[str]:
    """Bounds that do not hold, in words."""
    said = []
    for whole, control in zip(results[::2], results[1::2], strict=True):
        where = f"{whole['dataset']}, seed {whole['seed']}"
        if whole["gap"] > GAP_BOUND:
            said.append(f"{where}: {whole['gap']:.4f} below the optimum, more than {GAP_BOUND}")
        if (lost := whole["auroc"] - control["auroc"]) < LOSS_BOUND:
            said.append(f"{where}: without embeddings {lost:.4f} are lost, less than {LOSS_BOUND}")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print and store; 1 where a bound fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(DATASETS), help="default: %(default)s")
    parser.add_argument("--seeds", default="0", help="default: %(default)s")
    parser.add_argument("--scale", default="small", choices=list(SCALES), help="default: %(default)s")
    parser.add_argument("--epoch-samples", type=int, help="default: the scale's")
    parser.add_argument("--optimizer", default="rowwise_adagrad", choices=[kind.value for kind in OptimizerKind])
    parser.add_argument("--out", type=Path, help="write the results as JSON after every epoch")
    asked = parser.parse_args(arguments)
    scale = SCALES[asked.scale]
    if asked.epoch_samples:
        scale = replace(scale, epoch_samples=asked.epoch_samples)
    if scale.epoch_samples is None:
        parser.error(f"--scale {scale.name}: its epoch is the published one; give --epoch-samples")
    datasets = asked.datasets.split(",")
    if unknown := set(datasets) - set(SCHEMAS):
        parser.error(f"--datasets {','.join(sorted(unknown))}: choose from {', '.join(SCHEMAS)}")
    results: list[dict[str, Any]] = []
    for dataset in datasets:
        for seed in map(int, asked.seeds.split(",")):
            for kind in SYSTEMS:
                optimizer = OptimizerKind(asked.optimizer)
                results.append(train_epoch(dataset, kind, scale=scale, optimizer=optimizer, seed=seed))
                if asked.out:
                    write_json(asked.out, {"environment": capture().model_dump(mode="json"), "runs": results})
    shown = ["dataset", "seed", "kind", "samples", "stated", "optimum", "auroc", "gap", "train_s", "data_s"]
    sys.stdout.write(pd.DataFrame(results)[shown].to_string(index=False, float_format="{:.4f}".format) + "\n")
    said = failures(results)
    sys.stdout.write("".join(f"{failure}\n" for failure in said))
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
