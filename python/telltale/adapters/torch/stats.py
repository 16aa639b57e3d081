# SPDX-License-Identifier: Apache-2.0
"""What the plan asks of an optimizer's parameters and gradients, in place, just before it steps."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..._capture import DTYPE_CODES
from ..._native import probe
from .modules import Names

_torch: Any = None
# torch.dtype -> tt_dtype
_dtypes: dict[Any, int] = {}
_plain: tuple[type, ...] = ()


def _has_memory(tensor: Any) -> bool:
    """Whether all elements lie in memory; a storage may have been resized (sharding frees it so)."""
    if tensor.numel() == 0:
        return True
    # Before torch 2 the storage has a type.
    storage = (getattr(tensor, "untyped_storage", None) or tensor.storage)()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
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
    return None if _has_memory(tensor) else "stats.storage"


def _record(name: str, collection: str, tensor: Any, begin: int) -> None:
    id_ = probe.tensor(collection, name)
    take = probe.due(id_) if id_ else 0
    if not take:
        return
    reason = _skip(tensor)
    if reason is not None:
        probe.count_skipped(reason, 1)
        return
    # record accounts for itself; this is for the way to it.
    probe.account(begin)
    probe.record(
        id_,
        tensor.data_ptr(),
        _dtypes[tensor.dtype],
        tuple(tensor.shape),
        None if tensor.is_contiguous() else tensor.stride(),
        take,
    )


def on_stats(optimizer: Any) -> None:
    """Gives every parameter and gradient of the optimizer. The GIL is released inside for large
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
    # Later torches have more of them.
    _dtypes = {getattr(torch, name): code for name, code in DTYPE_CODES.items() if hasattr(torch, name)}
