"""Spread of AUROC that rounding alone causes: two exact systems may differ by so much.

    nice python results/streams/rounding.py --out results/streams/rounding.json
    nice python results/streams/rounding.py --scale full --out results/streams/rounding_full.json

It trains as a run at scale `small` does, several times: at the learning rate itself, and at rates that are a few
roundings of fp32 away from it. What lies between the AUROCs comes from rounding. Where training is unstable that is
much: at such a rate AUROC says nothing of a system. With `--scale full` the model is that of `full`, and all else is as
at `small`, on Criteo Kaggle alone: tables and batches of `full` take days on a CPU.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from learnable import ALL_ROWS, train_epoch

from suite.records.environment import capture
from suite.records.scales import FULL, SMALL, Scale
from suite.records.store import write_json
from systems.contract import OptimizerKind
from workloads.schema import DATASETS

RATES = [(OptimizerKind.SGD, 1.0), (OptimizerKind.SGD, 0.25), (OptimizerKind.ROWWISE_ADAGRAD, 0.01)]
RATES_OF_FULL = [(OptimizerKind.SGD, 0.5), (OptimizerKind.SGD, 0.2)]
MODEL_OF_FULL = replace(
    SMALL,
    embedding_dim=FULL.embedding_dim,
    bottom_mlp=FULL.bottom_mlp,
    top_mlp=FULL.top_mlp,
    train_steps=400,
    counted_steps=0,
)
ROUNDING = 2.0**-23
"""Between 1 and the next number of fp32."""


def spread(
    dataset: str, *, optimizer: OptimizerKind, lr: float, seed: int, runs: int = 4, scale: Scale = SMALL
) -> dict[str, Any]:
    """The AUROC of several runs whose learning rates differ by roundings, and how far the outermost lie apart."""
    steps = scale.train_steps + scale.counted_steps
    trained = [
        train_epoch(
            dataset,
            ALL_ROWS,
            scale=replace(scale, epoch_samples=steps * scale.batch_size),
            optimizer=optimizer,
            seed=seed,
            lr=lr * (1 + run * ROUNDING),
            test_samples=scale.evaluation_batches * scale.batch_size,
        )["auroc"]
        for run in range(runs)
    ]
    return {
        "dataset": dataset,
        "seed": seed,
        "optimizer": optimizer.value,
        "lr": lr,
        "steps": steps,
        "auroc": trained,
        "spread": max(trained) - min(trained),
    }


def main() -> int:
    """Train, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default=SMALL.name, choices=[SMALL.name, FULL.name], help="default: %(default)s")
    parser.add_argument("--seeds", help="default: 0,1,2; at full 0")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    asked = parser.parse_args()
    full = asked.scale == FULL.name
    found = [
        spread(dataset, optimizer=optimizer, lr=lr, seed=seed, scale=MODEL_OF_FULL if full else SMALL)
        for optimizer, lr in (RATES_OF_FULL if full else RATES)
        for dataset in (["criteo_kaggle"] if full else DATASETS)
        for seed in map(int, (asked.seeds or ("0" if full else "0,1,2")).split(","))
    ]
    if asked.out:
        write_json(asked.out, {"environment": capture().model_dump(mode="json"), "runs": found})
    sys.stdout.write(pd.DataFrame(found).drop(columns="auroc").to_string(index=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
