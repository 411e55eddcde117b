"""On PYTHONPATH: a Python that finds VCUDA set takes over kernels of torch and fbgemm, and of Triton if it is used."""

import os
from types import ModuleType

if "VCUDA" in os.environ:
    from wrapt.importer import when_imported

    @when_imported("fbgemm_gpu")
    def _kernels_of_torch_and_fbgemm(_: ModuleType) -> None:
        import virtual_operators
        import virtual_tables

        virtual_operators.install()
        virtual_tables.install()

    @when_imported("triton.runtime.interpreter")
    def _kernels_of_triton(_: ModuleType) -> None:
        import virtual_operators

        virtual_operators.install_triton()
