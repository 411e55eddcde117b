"""A stream of bags of every length, empty ones too: Criteo Kaggle with lists in the place of its large columns."""

from dataclasses import replace

import numpy as np
import torch
from torchrec import KeyedJaggedTensor

from workloads.batch import Batch, Split
from workloads.schema import CRITEO_KAGGLE
from workloads.streams.synthetic import SyntheticWorkload

HOTNESS = tuple(16 if rows >= 1000 else 1 for _, rows in CRITEO_KAGGLE.categorical)


class Bagged(SyntheticWorkload):
    """Of every bag of up to 16 ids so many are kept as a coin says, from none to all."""

    def batch(self, index: int, split: Split = Split.TRAIN) -> Batch:
        whole = super().batch(index, split)
        lengths = whole.features.lengths().numpy()
        kept = np.random.default_rng(index).integers(0, lengths + 1)
        places = np.arange(lengths.sum()) - np.repeat(whole.features.offsets().numpy()[:-1], lengths)
        features = KeyedJaggedTensor(
            keys=whole.features.keys(),
            values=whole.features.values()[torch.from_numpy(places < np.repeat(kept, lengths))],
            lengths=torch.from_numpy(kept),
            stride=self.batch_size,
        )
        return Batch(whole.dense, features, whole.labels)


def bagged(*, batch_size: int, seed: int, max_rows: int) -> Bagged:
    sizes = dict(SyntheticWorkload.create("criteo_kaggle", batch_size=1, seed=0, max_rows=max_rows).tables)
    schema = replace(CRITEO_KAGGLE, hotness=HOTNESS)
    return Bagged(schema=schema, rows=sizes, batch_size=batch_size, seed=seed)
