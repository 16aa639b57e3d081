# SPDX-License-Identifier: Apache-2.0
"""Gives the probe what the plan asks of one tensor.

The common one, plain and in main memory, is read by the binding where it lies (native/torch_read.cc).
What that refuses comes here: it is read another way (sparse, quantized, a lazy conjugate or negative, a part of
a distributed tensor, on a CUDA device), or counted as skipped. A copy made for that is at most 16 MiB.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any, Callable

from ..._capture import DTYPE_CODES, TAKE_RAW, TAKE_SHAPE, TAKE_STATS
from ..._native import note, probe
from . import device, device_values, shards

# Why the binding refused a tensor, as Refusal in torch_read.h.
TYPE, LAYOUT, DEVICE, DTYPE, LAZY, DIMENSIONS, STORAGE, FAILED = range(1, 9)
_COUNTERS = {
    TYPE: "capture.subclass",
    LAYOUT: "capture.layout",
    DEVICE: "capture.device",
    DTYPE: "capture.dtype",
    LAZY: "capture.lazy",
    DIMENSIONS: "capture.dimensions",
    STORAGE: "capture.storage",
    FAILED: "capture.wrapped",
}
_MAX_COPY_BYTES = 16 << 20
# dtypes that the kernels do not read, and one that holds all their values.
_WIDER = {
    "complex32": "complex64",
    "float8_e4m3fnuz": "float32",
    "float8_e5m2fnuz": "float32",
    "float8_e8m0fnu": "float32",
}
_torch: Any = None
# torch.dtype -> tt_dtype
dtypes: dict[Any, int] = {}
_wider: dict[Any, Any] = {}
_plain: tuple[type, ...] = ()
tensor_type: Any = object
# Of torch 1.13, whose DisableTorchFunction leaves modes on: the mode that stands for all of them.
_stack_mode: Any = None


def record(tensor: Any, name_id: int, take: int) -> None:
    """Gives what `take` asks of a tensor at the open step. `name_id`: of probe.tensor."""
    why = probe.record_torch(tensor, name_id, take)
    if why:
        refused(tensor, name_id, take, why)


def record_scaled(tensor: Any, name_id: int, take: int, scale: Any) -> None:
    """As record, of the values divided by `scale`, one element: read without waiting for a device. To be
    called inside undisturbed().
    """
    tensor = shards.local_part(tensor)
    strided_here = tensor.is_cpu and scale.is_cpu and tensor.layout is _torch.strided
    if type(tensor) not in _plain:
        probe.count_skipped("capture.subclass", 1)
    elif tensor.is_cuda and scale.is_cuda:
        if not _on_device(tensor, name_id, take, scale):
            probe.count_skipped("capture.device", 1)
    elif strided_here and _small(tensor, tensor.element_size()):
        # torch's own scalers divide by multiplying with the reciprocal, taken in float64.
        record(tensor.detach() * (1.0 / float(scale)), name_id, take)
    else:
        probe.count_skipped("capture.scaled_gradients", 1)


def refused(tensor: Any, name_id: int, take: int, why: int) -> None:
    """A tensor that the binding did not read: another way, or counted as skipped."""
    with _Undisturbed():
        other = _WAYS.get(why)
        if other is None or not other(tensor, name_id, take):
            probe.count_skipped(_COUNTERS.get(why, "capture.wrapped"), 1)


class _Undisturbed:
    """Neither autograd nor a mode of the user's (FlopCounterMode, set_default_device) sees what we do."""

    __slots__ = ("_dispatch", "_function", "_grad", "_mode")

    def __enter__(self) -> None:
        c = _torch._C
        # First: a mode would see what follows.
        self._mode = _stack_mode is not None and _mode_enabled()
        if self._mode:
            c._set_torch_function_mode(None)
        self._function = c.DisableTorchFunction()
        self._function.__enter__()
        self._grad = _torch.is_grad_enabled()
        c._set_grad_enabled(False)
        # A context manager; in torch 1 the object itself is the guard.
        self._dispatch = c._DisableTorchDispatch()
        if hasattr(self._dispatch, "__enter__"):
            self._dispatch.__enter__()

    def __exit__(self, *exception: object) -> None:
        if hasattr(self._dispatch, "__exit__"):
            self._dispatch.__exit__(*exception)
        del self._dispatch
        _torch._C._set_grad_enabled(self._grad)
        self._function.__exit__(*exception)
        if self._mode:
            _torch._C._set_torch_function_mode(_stack_mode())


def is_plain_here(tensor: Any) -> bool:
    """Whether it is a plain dense tensor in main memory, whose values can be asked for."""
    return (
        type(tensor) in _plain
        and bool(tensor.is_cpu)
        and tensor.layout is _torch.strided
        and not tensor.is_quantized
    )


def undisturbed() -> _Undisturbed:
    """A context for our own calls of torch."""
    return _Undisturbed()


def careful(part: Callable[..., Any]) -> Callable[..., Any]:
    """For what the hooks call: no mode of the user's sees it, and a failure of it is counted, and noted once."""
    noted = False

    @functools.wraps(part)
    def guarded(*arguments: Any) -> Any:
        nonlocal noted
        try:
            if _mode_enabled():
                with _Undisturbed():
                    answer = part(*arguments)
            else:
                answer = part(*arguments)
            if device.waiting():
                launch_device()
            return answer
        except Exception as error:
            device.drop_waiting()
            probe.count_skipped("capture.failed", 1)
            if not noted:
                noted = True
                note(f"torch: {part.__name__}: {type(error).__name__}: {error}")
            return None

    return guarded


def launch_device() -> None:
    """Starts what is to be computed on devices."""
    # Whose results are taken at the end of each optimizer's step.
    probe.forget_optimizers()
    with _Undisturbed():
        device.launch()


def end_device_step() -> None:
    """An optimizer was told of: starts the copy of what its step has computed on devices."""
    if device.in_use():
        with _Undisturbed():
            device.end_step()


def begin_device_forward() -> None:
    """A root's forward begins: takes what has arrived from devices."""
    if device.in_use():
        with _Undisturbed():
            device.begin_forward()


def _no_mode() -> bool:
    return False


_mode_enabled: Callable[[], bool] = _no_mode


def _small(tensor: Any, element_bytes: int = 8) -> bool:
    return bool(tensor.numel() * element_bytes <= _MAX_COPY_BYTES)


def _copied(tensor: Any, name_id: int, take: int) -> bool:
    return probe.record_torch(tensor, name_id, take) == 0


def _distributed(tensor: Any, name_id: int, take: int) -> bool:
    if not shards.is_distributed(tensor):
        return False
    local = shards.local_part(tensor)
    why = probe.record_torch(local, name_id, take)
    if why == TYPE:  # Still on its way (an asynchronous collective's result).
        return False
    if why:
        refused(local, name_id, take, why)
    return True


def _sparse(tensor: Any, name_id: int, take: int) -> bool:
    layout = tensor.layout
    if layout is _torch.sparse_coo:
        values = tensor if tensor.is_coalesced() else (tensor.coalesce() if _small_sparse(tensor) else None)
        values = values.values() if values is not None else None
    elif layout in _COMPRESSED:
        values = tensor.values()
    else:
        return False
    # With the zeros in place where that is cheap.
    if _small(tensor, tensor.element_size()):
        return _copied(tensor.detach().to_dense(), name_id, take)
    dtype = dtypes.get(tensor.dtype)
    if values is None or values.device.type != "cpu" or dtype is None:
        return False
    if take & TAKE_SHAPE:
        probe.record(name_id, id(tensor), dtype, tuple(tensor.shape), None, TAKE_SHAPE)
    if take & ~(TAKE_STATS | TAKE_SHAPE):
        probe.count_skipped("capture.sparse_values", 1)
    return not take & ~TAKE_SHAPE or _with_zeros(values.detach().contiguous(), int(tensor.numel()), name_id)


def _small_sparse(tensor: Any) -> bool:
    return _small(tensor._values())


_COMPRESSED: tuple[Any, ...] = ()


def _with_zeros(values: Any, count: int, name_id: int) -> bool:
    """Statistics of a tensor of `count` elements of which all but `values` are zero."""
    dtype = dtypes.get(values.dtype)
    if dtype is None:
        return False
    taken = probe.compute_stats(values.data_ptr(), values.numel(), dtype)
    if taken is None:
        return False
    given, nan, inf, zero, low, high, mean, std, l1, l2 = taken
    zeros = count - given
    finite = given - nan - inf
    if zeros > 0:
        if finite == 0:
            low = high = mean = std = l1 = l2 = 0.0
        total = finite + zeros
        # The parallel variance of the values and of the zeros.
        deviation = finite * std * std + finite * zeros / total * mean * mean
        std = math.sqrt(deviation / total)
        mean = mean * finite / total
        low, high = min(low, 0.0), max(high, 0.0)
    probe.record_computed(name_id, dtype, count, nan, inf, zero + zeros, low, high, mean, std, l1, l2)
    return True


def _on_device(tensor: Any, name_id: int, take: int, scale: Any = None) -> bool:
    dtype = dtypes.get(tensor.dtype)
    if dtype is None:
        return False
    # With values the shape goes beside them.
    if take & TAKE_SHAPE and not take & TAKE_RAW:
        device_values.give_shape(name_id, dtype, take, tensor.shape)
        take &= ~TAKE_SHAPE
    if not take or device.add(tensor, name_id, dtype, scale, take):
        return True
    device_values.give_shape(name_id, dtype, take, tensor.shape)
    return False


def _other_dtype(tensor: Any, name_id: int, take: int) -> bool:
    if not _small(tensor):
        return False
    if tensor.is_quantized:
        return _copied(tensor.detach().dequantize(), name_id, take)
    wider = _wider.get(tensor.dtype)
    return wider is not None and _copied(tensor.detach().to(wider), name_id, take)


def _lazy(tensor: Any, name_id: int, take: int) -> bool:
    if not _small(tensor, tensor.element_size()):
        return False
    return _copied(tensor.detach().resolve_conj().resolve_neg(), name_id, take)


def _many_dimensions(tensor: Any, name_id: int, take: int) -> bool:
    # Without an order the elements are those of one dimension; the shape itself has no place to go.
    if take & (TAKE_RAW | TAKE_SHAPE) or not _small(tensor, tensor.element_size()):
        return False
    return _copied(tensor.detach().reshape(-1), name_id, take)


_WAYS: dict[int, Callable[[Any, int, int], bool]] = {
    TYPE: _distributed,
    LAYOUT: _sparse,
    DEVICE: _on_device,
    DTYPE: _other_dtype,
    LAZY: _lazy,
    DIMENSIONS: _many_dimensions,
}


def plain_types() -> tuple[type, ...]:
    """Of tensors that are read as they are."""
    return _plain


def add_type(kind: type) -> None:
    """A subclass of Parameter that is one in all but name: its tensors are read as they are."""
    global _plain
    if kind not in _plain:
        _plain = (*_plain, kind)
        probe.configure_torch(types=_plain)


def install(torch: ModuleType) -> None:
    global _torch, _plain, _COMPRESSED, _mode_enabled, _stack_mode, tensor_type
    _torch = torch
    tensor_type = torch.Tensor
    dtypes.update((getattr(torch, name), code) for name, code in DTYPE_CODES.items() if hasattr(torch, name))
    for name, wider in _WIDER.items():
        if hasattr(torch, name):
            _wider[getattr(torch, name)] = getattr(torch, wider)
    layouts = ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
    _COMPRESSED = tuple(getattr(torch, name) for name in layouts if hasattr(torch, name))
    _plain = (torch.Tensor, torch.nn.Parameter)
    _mode_enabled = getattr(torch._C, "_is_torch_function_mode_enabled", _no_mode)
    if hasattr(torch._C, "_set_torch_function_mode"):
        _stack_mode = getattr(torch.overrides, "_TorchFunctionStackMode", None)
    tensor: Any = torch.Tensor
    compiler = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    probe.configure_torch(
        types=_plain,
        dtypes=dtypes,
        strided=torch.strided,
        # Before torch 2 storage() gives one with a type, which is slow to make.
        storage="untyped_storage" if hasattr(tensor, "untyped_storage") else "_storage",
        mode_enabled=_mode_enabled,
        set_eval_frame=getattr(compiler, "set_eval_frame", None),
    )
