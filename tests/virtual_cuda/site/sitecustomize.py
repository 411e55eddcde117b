"""On PYTHONPATH: a Python that finds VCUDA set takes over kernels of torch and fbgemm, and of Triton if it is used."""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def _kernels_of_torch_and_fbgemm() -> None:
    import virtual_operators
    import virtual_tables

    virtual_operators.install()
    virtual_tables.install()


def _kernels_of_triton() -> None:
    import virtual_operators

    virtual_operators.install_triton()


class _Behind(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and calls something behind the import of some."""

    behind: dict[str, Callable[[], None]] = {
        "fbgemm_gpu": _kernels_of_torch_and_fbgemm,
        "triton.runtime.interpreter": _kernels_of_triton,
    }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        install = self.behind.pop(name, None)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if install is not None else None
        if spec is None or spec.loader is None or install is None:
            return None
        load = spec.loader.exec_module

        def load_and_install(module: ModuleType) -> None:
            load(module)
            install()

        spec.loader.exec_module = load_and_install  # type: ignore[method-assign]
        return spec


if "VCUDA" in os.environ:
    sys.meta_path.insert(0, _Behind())
