"""Rows on the host, pooled by the CPU: offloading without a cache and without UVM."""

from dataclasses import replace

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.contract import Counters, Placement, Support, SystemSpec
from systems.fbgemm.tbe_system import TBESystem


class CPUEmbeddings(TBESystem):
    """fbgemm's CPU kernels look up and update; pooled vectors go to the device, their gradients come back.

    FAE (arXiv 2103.00686) and Hotline (arXiv 2204.05436) compare with it. No table byte is on the device, so every row
    that a batch asks for counts as missing there. Copies are from and to pageable memory: the host waits for them.
    """

    about = (
        "All rows in host memory, where the CPU pools and updates them; only pooled vectors and gradients cross the "
        "link: no GPU memory for tables, at the speed of the CPU."
    )
    takes_weights = True
    ids_on_host = True
    same_on_host = "full_gpu"
    location = EmbeddingLocation.HOST

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        return super().support(replace(spec, device=torch.device("cpu")))  # lookups run on the CPU, on CUDA too

    @property
    def placement(self) -> Placement:
        if self.spec.device.type == "cpu":
            return super().placement
        return Placement(label="host, looked up there", offloads=True)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        return super().forward(features).to(self.spec.device)

    def counters(self) -> Counters:
        return self._counter.looked_up_in_place([self._counter])
