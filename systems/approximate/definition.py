"""The definition of a composed system, carried out: materialise every table, look up, train by dense autograd."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import embedding_bag
from torchrec import KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.approximate.composed import ComposedTables
from systems.approximate.composition import Composition
from systems.approximate.parts import LeafParameters, Parameter
from systems.contract import SystemSpec, Tier
from systems.features import FeatureGroups


class DefinitionSystem(ComposedTables):
    """What a composed system is verified against: slow, larger than the tables, and nothing but the definition."""

    about = (
        "Every row composed anew at every step, in plain PyTorch: the answer that a composed system is checked against."
    )

    def __init__(self, spec: SystemSpec, compositions: Mapping[str, Composition]) -> None:
        super().__init__(spec, compositions)
        self._groups = FeatureGroups(spec.tables, key=lambda table: None)
        self._leaves = LeafParameters(list(self.compositions.values()), spec)
        self._place = {name: place for place, name in enumerate(self.compositions)}

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DEVICE: spec.row_bytes}

    def live(self, table: str) -> Mapping[str, Parameter]:
        return self._leaves.live[self._place[table]]

    def set_learning_rate(self, lr: float) -> None:
        self._leaves.set_learning_rate(lr)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        (ordered,) = self._groups.split(features)
        self._counter.observe(ordered)
        parts = ordered.to_dict()
        pooled = []
        for place, table in enumerate(self.spec.tables):
            every = torch.arange(table.num_embeddings, device=self.spec.device)
            rows = self.compositions[table.name].compose(self._leaves.values(place), every)
            mode = "sum" if table.pooling is PoolingType.SUM else "mean"
            for name in table.feature_names:
                ids, offsets = parts[name].values(), parts[name].offsets()
                pooled.append(embedding_bag(ids, rows, offsets, mode=mode, include_last_offset=True))
        return self._groups.join([torch.cat(pooled, dim=1)])
