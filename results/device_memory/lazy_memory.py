"""Host memory that costs nothing until it is written, for tables that are larger than the machine's memory."""

import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LARGE_BYTES = 64 << 20
"""From which a tensor on the host gets such memory."""
_NORESERVE = 0x4000  # of Linux; the module `mmap` names it from Python 3.13 on
_PR_SET_THP_DISABLE = 41


class _Unwritten(TorchFunctionMode):
    """Gives large tensors of `torch.empty` and `torch.zeros` on the host pages that are not there yet.

    Large tensors that are to be drawn at random, as torchrec draws first rows, stay as they are.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func in (torch.Tensor.uniform_, torch.nn.init.uniform_):
            drawn: Tensor = args[0] if args else options["tensor"]
            if drawn.nbytes >= LARGE_BYTES:
                return drawn
        if func in (torch.empty, torch.zeros) and not {"out", "pin_memory"} & options.keys():
            shape = torch.Size(args[0] if args and not isinstance(args[0], int) else args)
            dtype = options.get("dtype") or torch.get_default_dtype()
            size = math.prod(shape) * dtype.itemsize
            device = options.get("device")  # 0 is the first GPU
            if size >= LARGE_BYTES and (device is None or torch.device(device).type == "cpu"):
                block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                made: Tensor = torch.frombuffer(block, dtype=dtype).view(shape)
                return made.requires_grad_(options.get("requires_grad", False))
        return func(*args, **options)


@contextmanager
def lazy_host_memory() -> Iterator[None]:
    """While a system is built, have the host promise more memory than it has, in small pages, and write no rows."""
    disable_huge_pages()
    real = mmap.mmap

    def unreserved(fileno: int, length: int, **options: Any) -> mmap.mmap:
        flags = options.pop("flags", mmap.MAP_SHARED)
        return real(fileno, length, flags=flags | (_NORESERVE if fileno == -1 else 0), **options)

    with patch.object(mmap, "mmap", unreserved), _Unwritten():
        yield


def disable_huge_pages() -> None:
    """Keep to small pages in this process: a row that is written would bring 2 MiB with it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "huge pages cannot be switched off for this process")
