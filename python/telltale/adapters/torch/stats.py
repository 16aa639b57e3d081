# SPDX-License-Identifier: Apache-2.0
"""Statistics of an optimizer's parameters and gradients, in place, just before it steps."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..._native import probe
from .modules import Names

_torch: Any = None
# torch.dtype -> tt_dtype
_dtypes: dict[Any, int] = {}
_plain: tuple[type, ...] = ()


def _dense(tensor: Any) -> bool:
    """Whether the elements fill one block of memory, in any order (statistics need no order)."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _has_memory(tensor: Any) -> bool:
    """Whether all elements lie in memory; a storage may have been resized (sharding frees it so)."""
    if tensor.numel() == 0:
        return True
    # Before torch 2 the storage has a type.
    storage = (getattr(tensor, "untyped_storage", None) or tensor.storage)()
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return tensor.data_ptr() != 0 and end <= storage.nbytes()


def _skip(tensor: Any) -> str | None:
    """Why a tensor's statistics cannot be taken here, or None."""
    if type(tensor) not in _plain:
        return "stats.subclass"
    if tensor.layout is not _torch.strided:
        return "stats.layout"
    if tensor.device.type != "cpu":
        return "stats.device"
    if tensor.dtype not in _dtypes:
        return "stats.dtype"
    if tensor.is_conj() or tensor.is_neg():
        return "stats.lazy"
    if not _dense(tensor):
        return "stats.strides"
    return None if _has_memory(tensor) else "stats.storage"


def _record(name: str, collection: str, tensor: Any, begin: int) -> None:
    reason = _skip(tensor)
    if reason is not None:
        probe.count_skipped(reason, 1)
        return
    count = tensor.numel()
    if count == 0:
        return
    # record_stats accounts for itself; this is for the way to it.
    probe.account(begin)
    probe.record_stats(
        name,
        collection,
        tensor.data_ptr(),
        count,
        _dtypes[tensor.dtype],
        count * tensor.element_size(),
    )


def on_stats(optimizer: Any) -> None:
    """Records every parameter and gradient of the optimizer. The GIL is released inside for large
    ones; the references held here keep their memory.
    """
    begin = probe.now()
    names = Names()
    probe.account(begin)
    for group_number, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            begin = probe.now()
            name = names.of(parameter) or f"param_{group_number}_{number}"
            _record(name, "weights", parameter, begin)
            gradient = parameter.grad
            if gradient is not None:
                _record("gradient/" + name, "gradients", gradient, probe.now())


def install(torch: ModuleType) -> None:
    global _torch, _dtypes, _plain
    _torch = torch
    _plain = (torch.Tensor, torch.nn.Parameter)
    _dtypes = {
        torch.float32: 0,
        torch.float64: 1,
        torch.float16: 2,
        torch.bfloat16: 3,
        torch.int64: 4,
        torch.int32: 5,
        torch.int16: 6,
        torch.int8: 7,
        torch.uint8: 8,
        torch.bool: 9,
    }
