"""ColossalAI's cache, imported without the rest of ColossalAI, and stand-ins for its CUDA calls on a CPU."""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_ROOM = "colossalai.legacy.nn.parallel.layers.cache_embedding"


def missing() -> str:
    """Names of required packages that are not installed, joined by "and"; empty if all are."""
    names = ("colossalai", "contexttimer")
    return " and ".join(name for name in names if importlib.util.find_spec(name) is None)


@functools.cache
def library() -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Import only ColossalAI's cache, with empty parent packages: the real ones import peft and much more.

    Returns the class, and its eviction strategies by name.

    The empty packages are removed afterwards, so that a program with all of ColossalAI can still import it.

    Raises:
        ImportError: it is not installed.
    """
    found = importlib.util.find_spec("colossalai")
    if found is None or not found.submodule_search_locations:
        raise ImportError("colossalai is not installed", name="colossalai")
    folder, empty = Path(found.submodule_search_locations[0]), {}
    parts = _ROOM.split(".")
    for depth in range(1, len(parts) + 1):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(folder.joinpath(*parts[1:depth]))]
        empty[package.__name__] = package
    real = {name: sys.modules[name] for name in empty if name in sys.modules}
    sys.modules.update(empty)
    try:
        bag = importlib.import_module(f"{_ROOM}.cached_embedding").CachedEmbeddingBag
        strategies = importlib.import_module(f"{_ROOM}.cache_mgr").EvictionStrategy.__members__
    finally:
        for name in empty:
            del sys.modules[name]
        sys.modules.update(real)
    return bag, strategies


def _same(tensor: Tensor, *_: object, **__: object) -> Tensor:
    return tensor


_STAND_INS: tuple[tuple[Any, str, Callable[..., object]], ...] = (
    (torch.cuda, "current_device", lambda: torch.device("cpu")),
    (torch.cuda, "synchronize", lambda device=None: None),
    (Tensor, "cuda", _same),
    (Tensor, "pin_memory", _same),
)


@contextmanager
def without_cuda() -> Iterator[None]:
    """Let the CPU stand in for the current CUDA device inside the block; the patches are undone afterwards."""
    own = [vars(owner).get(name) for owner, name, _ in _STAND_INS]
    for owner, name, stand_in in _STAND_INS:
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        for (owner, name, _), before in zip(_STAND_INS, own, strict=True):
            if before is None:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, before)
