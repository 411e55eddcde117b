"""Kernels in Python that wait in the streams of the virtual CUDA device, and run when their turn comes."""

import atexit
import ctypes
import gc
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Callable

import torch

LATE = "VCUDA_LATE" in os.environ
failures: list[BaseException] = []
"""What kernels raised; torch hears of it at its next synchronisation, as of a failed assertion."""

runtime = ctypes.CDLL(None)
_waiting: dict[int, Callable[[], object]] = {}
_tokens = itertools.count(1)


class _WithoutCollections:
    """No collection of garbage within a kernel: a finalizer may wait for a device that waits for it."""

    def __init__(self) -> None:
        self._kernels, self._before = 0, False

    def __enter__(self) -> None:
        if not self._kernels:
            self._before = gc.isenabled()
            gc.disable()
        self._kernels += 1

    def __exit__(self, *_: object) -> None:
        self._kernels -= 1
        if self._before and not self._kernels:
            gc.enable()


_without_collections = _WithoutCollections()


@ctypes.CFUNCTYPE(None, ctypes.c_size_t)
def _run(token: int) -> None:
    work = _waiting.pop(token)
    try:
        with _without_collections, torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
            work()
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        failures.append(error)
        runtime.vcuda_break()


def stream() -> ctypes.c_void_p:
    """The current stream."""
    return ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(0))


def launch(work: Callable[[], object]) -> None:
    """Queue a kernel on the current stream. It may hold no tensor of the device but `host` tensors over its memory."""
    if not LATE:
        with torch._C._AutoDispatchBelowAutograd():
            work()
        return
    token = next(_tokens)
    _waiting[token] = work
    runtime.vcuda_launch(stream(), ctypes.c_size_t(token))


def reach() -> None:
    """Have the current stream do all that it was asked for."""
    if LATE:
        runtime.vcuda_reach(stream())


def start() -> None:
    """Have the runtime call kernels, and stop when the process ends."""
    runtime.vcuda_kernels(_run)
    atexit.register(runtime.vcuda_stop)


def waits(what: str) -> None:
    """Say that the host waits here, as `torch.cuda.set_sync_debug_mode` asks."""
    mode = torch.cuda.get_sync_debug_mode()
    if mode == 1:
        warnings.warn(f"called a synchronizing CUDA operation: {what}", stacklevel=3)
    elif mode == 2:
        raise RuntimeError(f"called a synchronizing CUDA operation: {what}")


def draw(seed: int) -> None:
    """Draw which streams are late, by a seed from 0 to 15; 0: all, to the end."""
    torch.cuda.synchronize()
    runtime.vcuda_seed(ctypes.c_uint64(seed))
