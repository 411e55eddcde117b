"""The baseline: every row on the device that computes."""

from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

from systems.contract import Counters, Support, SystemSpec, Tier, Verdict
from systems.fbgemm.tbe_system import TBESystem


class FullGPU(TBESystem):
    """fbgemm TBE with every row on the device that computes: DEVICE on CUDA, HOST on a CPU."""

    about = (
        "Every row in GPU memory, in fbgemm's kernels: what to use while all tables fit there, and the baseline of "
        "every ratio."
    )
    takes_weights = True
    host_rows_are = Tier.DEVICE
    location = EmbeddingLocation.DEVICE

    def counters(self) -> Counters:
        return self._counter.all_resident()


class FullRAM(FullGPU):
    """`full_gpu` on a CPU, under its name with `--tier disk`: the upper bound of systems with rows on a drive."""

    about = "Every row in RAM, outside any budget: what rows on a drive are measured against."

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        if spec.device.type != "cpu":
            return Support(Verdict.UNSUPPORTED, "full_ram computes on a CPU: take full_gpu on a GPU")
        return super().support(spec)
