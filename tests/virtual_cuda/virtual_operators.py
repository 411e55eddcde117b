"""torch's operators on the virtual CUDA device: at the CUDA dispatch key, each runs its CPU kernel on the same memory.

The device's memory is the host's, so a CPU tensor over a CUDA tensor's storage costs nothing. Results lie in memory of
torch's own CUDA caching allocator. With VCUDA_LATE set a kernel waits in its stream, and the operator's kernel for meta
tensors says what shapes its results have. What has no such kernel, or must know data, waits for its stream and is
computed at once. What only keeps books or copies through the runtime (allocation, views, streams) stays torch's own. An
operator without a CPU kernel fails by its name.
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from virtual_streams import LATE, launch, reach, runtime, start, stream, waits

OWN = frozenset([
    "as_strided", "view", "view_as_real", "view_as_complex", "unfold", "_reshape_alias", "detach", "alias",
    "empty.memory_format", "empty_strided", "resize_", "set_", "set_.source_Storage",
    "set_.source_Storage_storage_offset", "set_.source_Tensor", "is_pinned", "_pin_memory", "_local_scalar_dense",
    "record_stream", "is_set_to", "_has_same_storage_numel",
])  # fmt: skip
"""Operators of `aten` that stay torch's own: they launch no kernel."""
OWN_SPARSE = frozenset([
    "_coalesced_", "_indices", "_values", "indices", "values", "is_coalesced", "sparse_dim", "dense_dim", "_nnz",
    "_dimI", "_dimV", "empty.memory_format", "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors", "sparse_resize_", "sparse_resize_and_clear_",
])  # fmt: skip
SHAPED_BY_DATA = frozenset(("aten::equal", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"))
"""Operators whose CPU kernels give other shapes than their meta kernels say, or none."""
INDEXING = frozenset(("aten::index.Tensor", "aten::_index_put_impl_"))
"""Operators that take indices second, of which some make the host wait: see `_asks_for_numbers`."""
_HOST = torch.device("cpu")
_EVERYWHERE = torch._C.DispatchKeySet(torch._C.DispatchKey.HPU)
"""A backend that nobody has, at which an operator's kernel for all backends still stands."""
_libraries: list[torch.library.Library] = []


def host(tensor: Tensor) -> Tensor:
    """A CPU tensor over the same memory, which does not keep it alive: as a kernel has it."""
    if tensor.device.type != "cuda":
        return tensor
    if tensor.layout is torch.sparse_coo:
        return _sparse(host, tensor)
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    over = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), _HOST, storage.nbytes())
    return torch.empty(0, dtype=tensor.dtype).set_(over, tensor.storage_offset(), tensor.size(), tensor.stride())


def argument(tensor: Tensor) -> Tensor:
    """A tensor as a kernel has it that runs later: numbers of the host as they are now."""
    return host(tensor) if tensor.device.type == "cuda" or not LATE else tensor.clone()


def like(tensor: Tensor) -> Tensor:
    """Memory on the device for a tensor of this kind."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cuda")


def device(tensor: Tensor) -> Tensor:
    """A copy on the device, strides kept, made at once."""
    if tensor.layout is torch.sparse_coo:
        return _sparse(device, tensor)
    out = like(tensor)
    if tensor.numel():
        host(out).copy_(tensor)
    return out


def _sparse(change: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    parts = change(tensor._indices()), change(tensor._values())
    return torch.sparse_coo_tensor(*parts, tensor.size(), check_invariants=False, is_coalesced=tensor.is_coalesced())


def _map(value: Any, change: Callable[[Tensor], Any], place: torch.device = _HOST) -> Any:
    """Change the tensors of an argument; devices become `place`, and the default generator draws."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(one, change, place) for one in value)
    if isinstance(value, torch.device):
        return place
    return None if isinstance(value, torch.Generator) else value


def _each(left: Any, right: Any, act: Callable[[Tensor, Tensor], object]) -> None:
    if isinstance(left, Tensor):
        act(left, right)
    elif left is not None:
        for one, other in zip(left, right, strict=True):
            _each(one, other, act)


def _meta(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda" and tensor.dim() == 0:
        return tensor  # a number that was wrapped decides no type of a result
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _asks_for_numbers(indices: Sequence[Tensor | None]) -> bool:
    """Whether the host waits for indices: to count what a mask selects, or to copy them to the device."""
    masks = torch.bool, torch.uint8
    return any(one is not None and (one.dtype in masks or one.device.type == "cpu") for one in indices)


class Kernel:
    """The kernel at the CUDA key of one operator."""

    def __init__(self, op: torch._ops.OpOverload) -> None:
        schema = op._schema
        self.op = op
        self.name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        self.outs = [one.name for one in schema.arguments if one.is_out]
        self.written = [
            (at, one.name)
            for at, one in enumerate(schema.arguments)
            if one.alias_info is not None and one.alias_info.is_write and not one.is_out
        ]
        self.returns_written = bool(schema.returns) and schema.returns[0].alias_info is not None
        dynamic = torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output
        self.waits = any(tag in op.tags for tag in dynamic) or self.name == "aten::equal"
        self.now = self.waits or self.name in SHAPED_BY_DATA or torch.Tag.nondeterministic_seeded in op.tags
        self.in_place = bool(self.written) and all(one.alias_info is not None for one in schema.returns)

        tensors = [at for at, one in enumerate(schema.arguments) if str(one.type) == "Tensor"]
        self.tensors = frozenset(tensors if self.in_place else [])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.tensors:  # a wrapped number arrives as a number, which not every operator takes back
            args = tuple(
                torch.tensor(one) if at in self.tensors and isinstance(one, (bool, int, float)) else one
                for at, one in enumerate(args)
            )
        waiting = _asks_for_numbers(args[1]) if self.name in INDEXING else self.waits
        if waiting and kwargs.get("output_size") is None:
            waits(self.name)
        targets = {key: kwargs[key] for key in self.outs if key in kwargs}
        rest = {key: value for key, value in kwargs.items() if key not in targets}
        with torch._C._AutoDispatchBelowAutograd():
            if LATE and not self.now:
                shapes = self._shapes_of(args, rest, targets)
                if shapes is not NotImplemented:
                    return self._later(args, rest, targets, shapes)
            reach()
            return self._now(args, rest, targets)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments that are written, which an operator in place returns."""
        given = [args[at] if at < len(args) else kwargs.get(name) for at, name in self.written]
        return given[0] if given else None

    def _shapes_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: dict[str, Any]) -> Any:
        """Meta tensors for what is to be made, None in place, NotImplemented where only computing tells."""
        if self.in_place:
            return None
        meta = torch.device("meta")
        try:
            if any(one.layout is not torch.strided for one in _tensors((args, kwargs))):
                return NotImplemented
            with torch._C._DisableTorchDispatch():
                fresh = {
                    key: _map(out, lambda t: torch.empty(0, dtype=t.dtype, device=meta)) for key, out in targets.items()
                }
                named = {key: _map(value, _meta, meta) for key, value in kwargs.items()}
                made = self.op(*_map(args, _meta, meta), **named, **fresh)
        except (NotImplementedError, RuntimeError, TypeError, IndexError, ValueError):
            return NotImplemented  # the CPU kernel says what is wrong, if anything is
        shapes = tuple(fresh.values()) if targets else made
        return shapes if _all_meta(shapes) else NotImplemented

    def _later(self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: dict[str, Any], shapes: Any) -> Any:
        op, inputs, named = self.op, _map(args, argument), {key: _map(value, argument) for key, value in kwargs.items()}
        if self.in_place:
            launch(lambda: op(*inputs, **named))
            return self._given(args, kwargs) if self.returns_written else None
        if targets:
            given = tuple(targets.values())
            _each(given, shapes, lambda out, shape: None if out.size() == shape.size() else out.resize_(shape.size()))
            into = {key: _map(out, host) for key, out in targets.items()}
            launch(lambda: op(*inputs, **named, **into))
            return given[0] if len(given) == 1 else given
        made = _map(shapes, like)
        memory = _map(made, host)
        launch(lambda: _each(memory, op(*inputs, **named), Tensor.copy_))
        return made

    def _now(self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: dict[str, Any]) -> Any:
        fresh = {key: _map(out, lambda t: torch.empty(0, dtype=t.dtype)) for key, out in targets.items()}
        results = self.op(*_map(args, host), **{key: _map(value, host) for key, value in kwargs.items()}, **fresh)
        if targets:
            for key, out in targets.items():
                _each(out, fresh[key], _into)
            values = tuple(targets.values())
            return values[0] if len(values) == 1 else values
        if self.written and self.returns_written:
            return self._given(args, kwargs)
        given = [t for t in _tensors((args, kwargs)) if t.is_cuda and t.layout is torch.strided]
        places = {t.untyped_storage().data_ptr() for t in given}

        def result(tensor: Tensor) -> Tensor:
            if tensor.layout is torch.strided and tensor.numel() and tensor.untyped_storage().data_ptr() in places:
                raise NotImplementedError(f"the virtual CUDA device: {self.name} gave a view, name it in OWN")
            return device(tensor)

        return _map(results, result)


def _all_meta(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.device.type == "meta" and value.layout is torch.strided
    return value is None or (isinstance(value, (list, tuple)) and all(map(_all_meta, value)))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [t for one in value for t in _tensors(one)] if isinstance(value, (list, tuple)) else []


def _into(out: Tensor, result: Tensor) -> None:
    if out.size() != result.size():
        out.resize_(result.size())
    host(out).copy_(result)


def copy_(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """torch's own where that is one copy by the runtime, so that the pinned end is held; else a kernel."""
    if to.numel() == 0:
        return to
    if to.size() == source.size() and source.is_contiguous() and to.is_contiguous() and source.dtype == to.dtype:
        return torch.ops.aten.copy_.default.redispatch(_EVERYWHERE, to, source, non_blocking)  # type: ignore[no-any-return]
    if to.device.type == "cuda":
        with torch._C._AutoDispatchBelowAutograd():
            target, values = host(to), argument(source)
            launch(lambda: target.copy_(values))
        if source.device.type != "cuda" and not non_blocking:
            waits("a copy from the host")
            reach()
    elif to.is_contiguous():  # the device makes what is copied
        to.copy_(torch.empty(to.size(), dtype=to.dtype, device="cuda").copy_(source), non_blocking)
    else:
        to.copy_(torch.empty(to.size(), dtype=to.dtype).copy_(source))
    return to


def zero_(tensor: Tensor) -> Tensor:
    """By the runtime where that is one call: it gives pages back instead of writing them."""
    if tensor.is_contiguous() and tensor.numel():
        runtime.cudaMemsetAsync(ctypes.c_void_p(tensor.data_ptr()), 0, ctypes.c_size_t(tensor.nbytes), stream())
    elif tensor.numel():
        with torch._C._AutoDispatchBelowAutograd():
            memory = host(tensor)
            launch(memory.zero_)
    return tensor


def fill_(tensor: Tensor, value: Any) -> Tensor:
    """Fill with a number."""
    if value == 0:
        return zero_(tensor)
    with torch._C._AutoDispatchBelowAutograd():
        memory = host(tensor)
        launch(lambda: memory.fill_(value))
    return tensor


def define(namespace: str, kernels: dict[str, Callable[..., Any]], key: str = "CUDA") -> None:
    """Have these kernels, by operator, stand at a dispatch key."""
    library = torch.library.Library(namespace, "IMPL", key)
    for name, kernel in kernels.items():
        library.impl(name, kernel, key, allow_override=True)
    _libraries.append(library)


def overload(qualified: str) -> torch._ops.OpOverload:
    """An operator by its name with namespace and overload."""
    namespace, _, name = qualified.partition("::")
    base, _, over = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), over or "default")  # type: ignore[no-any-return]


def install() -> None:
    """Take over the operators of `aten` that have CUDA kernels."""
    start()
    by_hand = {"copy_": copy_, "zero_": zero_, "fill_.Scalar": fill_}
    for key, own, special in (("CUDA", OWN, by_hand), ("SparseCUDA", OWN_SPARSE, {})):
        registered = (q.partition("::") for q in torch._C._dispatch_get_registrations_for_dispatch_key(key))
        names = {name for namespace, _, name in registered if namespace == "aten"} - own - special.keys()
        define("aten", {name: Kernel(overload(f"aten::{name}")) for name in names} | special, key)
    _gloo_for_nccl()


def install_triton() -> None:
    """Have Triton's interpreter run a kernel on the memory as it is, when its turn comes."""
    from triton.runtime.interpreter import GridExecutor

    run, alone = GridExecutor.__call__, threading.Lock()  # the interpreter changes Triton's language while it runs

    def later(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        with torch._C._AutoDispatchBelowAutograd():
            inputs, named = _map(args, argument), {key: _map(value, argument) for key, value in kwargs.items()}

        def kernel() -> None:
            with alone:
                run(self, *inputs, **named)

        launch(kernel)

    GridExecutor.__call__ = later


def _gloo_for_nccl() -> None:
    """NCCL has a CUDA runtime of its own inside and finds no driver; gloo copies through torch's."""
    start = torch.distributed.init_process_group

    @functools.wraps(start)
    def with_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_id", None)
        start("gloo" if backend and "nccl" in backend else backend, *args, **kwargs)

    torch.distributed.init_process_group = with_gloo
