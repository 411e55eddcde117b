"""Systems that give wrong answers, each in one way, through the contract alone.

Verification must find them, but the last two, which go wrong at a size that it does not have.
"""

from dataclasses import replace

import torch
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.contract import Rows
from systems.reference import ReferenceSystem


class SlightlyWrongUpdate(ReferenceSystem):
    """A learning rate that is off by a thousandth."""

    def __init__(self, spec):
        super().__init__(replace(spec, optimizer=replace(spec.optimizer, lr=spec.optimizer.lr * 1.001)))


class WrongForDuplicates(ReferenceSystem):
    """Of the samples that share a row, only the first one's gradient arrives."""

    def forward(self, features):
        pooled = super().forward(features)
        if not pooled.values().requires_grad or bool((features.lengths() != 1).any()):
            return pooled
        masks = []
        for table in self.spec.tables:
            (name,) = table.feature_names
            _, position = features[name].values().unique(return_inverse=True)
            first = torch.full((int(position.max()) + 1,), position.numel())
            first.scatter_reduce_(0, position, torch.arange(position.numel()), "amin")
            keep = torch.arange(position.numel()) == first[position]
            masks.append(keep[:, None].expand(-1, table.embedding_dim))
        mask = torch.cat(masks, dim=1)
        pooled.values().register_hook(lambda gradient: gradient * mask)
        return pooled


class EvaluationChangesRows(ReferenceSystem):
    """A forward pass without training writes to a row."""

    def forward(self, features):
        pooled = super().forward(features)
        if not self.training:
            name = self.spec.tables[-1].name
            rows = self.read_rows(name, torch.tensor([1]))
            self.load_rows(name, 1, Rows(rows.weights + 1e-6, rows.state))
        return pooled


class SavesNoState(ReferenceSystem):
    """Its state_dict holds zeros in place of the optimizer's state."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key, value in destination.items():
            if not key.endswith(".weight"):
                value.zero_()


class DropsState(ReferenceSystem):
    """Its state_dict has no optimizer state, which it then misses itself."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in [key for key in destination if not key.endswith(".weight")]:
            del destination[key]


class StaleAfterEviction(ReferenceSystem):
    """One row that the next batch does not need is not written back: it is what it was when fetched."""

    def __init__(self, spec):
        super().__init__(spec)
        self._fetched = {}

    def forward(self, features):
        if torch.is_grad_enabled():
            name = max(self.tables, key=lambda table: self.tables[table].num_embeddings)
            wanted = set(features[name].values().tolist())
            for row in sorted(self._fetched.keys() - wanted)[:1]:
                self.load_rows(name, row, self._fetched[row])
            self._fetched = {row: self.read_rows(name, torch.tensor([row])) for row in wanted}
        return super().forward(features)


class NanOutput(ReferenceSystem):
    """One element of the output is not a number."""

    def forward(self, features):
        pooled = super().forward(features)
        spoilt = torch.zeros_like(pooled.values())
        spoilt[0, 0] = torch.nan
        return KeyedTensor(pooled.keys(), pooled.length_per_key(), pooled.values() + spoilt)


class EmptyBagIsNotZero(ReferenceSystem):
    """A sample without an id gets ones."""

    def forward(self, features):
        pooled = super().forward(features)
        empty = features.lengths().reshape(len(features.keys()), -1).T == 0
        ones = torch.cat(
            [empty[:, [i]].expand(-1, t.embedding_dim).float() for i, t in enumerate(self.spec.tables)], dim=1
        )
        return KeyedTensor(pooled.keys(), pooled.length_per_key(), pooled.values() + ones)


class MixesUpTables(ReferenceSystem):
    """The first two features come out in each other's place."""

    def forward(self, features):
        pooled = super().forward(features)
        parts = list(pooled.values().split(pooled.length_per_key(), dim=1))
        parts[0], parts[1] = parts[1], parts[0]
        return KeyedTensor(pooled.keys(), pooled.length_per_key(), torch.cat(parts, dim=1))


class ReadsTheOldRows(ReferenceSystem):
    """`read_rows` answers with the rows as they were loaded, so that no comparison can see the training."""

    def load_rows(self, table, start, rows):
        super().load_rows(table, start, rows)
        self.__dict__.setdefault("_loaded", {})[table] = super().read_rows(
            table, torch.arange(self.tables[table].num_embeddings)
        )

    def read_rows(self, table, ids):
        kept = self._loaded[table]
        return Rows(kept.weights[ids], {name: state[ids] for name, state in kept.state.items()})


class LosesAnUpdate(ReferenceSystem):
    """Right in small tables. In a large one a single row misses the update of the fourth batch."""

    def __init__(self, spec):
        super().__init__(spec)
        self._batches = 0
        self._kept = None

    def forward(self, features):
        name = max(self.tables, key=lambda table: self.tables[table].num_embeddings)
        if self._kept is not None:
            self.load_rows(name, *self._kept)
            self._kept = None
        if torch.is_grad_enabled():
            self._batches += 1
            if self._batches == 4 and self.tables[name].num_embeddings > self.verified_rows:
                row = features[name].values()[:1]
                self._kept = int(row), self.read_rows(name, row)
        return super().forward(features)


class KeepsSixteenBits(ReferenceSystem):
    """Takes the lower 16 bits of an id for the id."""

    def forward(self, features):
        low = features.values() & 0xFFFF
        return super().forward(KeyedJaggedTensor(features.keys(), low, lengths=features.lengths()))
