"""The baseline: every row on the device that computes."""

from __future__ import annotations

from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

from systems.contract import Counters, Placement, SystemSpec, Tier
from systems.tbe_system import TBESystem


class FullGPU(TBESystem):
    """fbgemm TBE with every row on the device: DEVICE on CUDA, HOST on a CPU, which then is the device."""

    about = (
        "Every row in GPU memory, in fbgemm's kernels: what to use while all tables fit there, and the baseline of "
        "every ratio."
    )
    takes_weights = True
    host_rows_are = Tier.DEVICE

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DEVICE: spec.row_bytes + spec.state_bytes}

    def location(self) -> EmbeddingLocation:
        return EmbeddingLocation.DEVICE

    @property
    def placement(self) -> Placement:
        live = super().placement
        return Placement(label="all in RAM", offloads=False) if live.label == "host-resident" else live

    def counters(self) -> Counters:
        return self._counter.all_resident()
