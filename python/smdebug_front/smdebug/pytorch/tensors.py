# SPDX-License-Identifier: Apache-2.0
"""Where the values of a torch tensor lie, for the probe to read them in place."""

import torch

# torch.dtype -> tt_dtype of telltale/probe.h
_DTYPES = {
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
    torch.complex64: 10,
    torch.complex128: 11,
}
for _name, _code in (
    ("float8_e4m3fn", 12),
    ("float8_e5m2", 13),
    ("uint16", 14),
    ("uint32", 15),
    ("uint64", 16),
):
    if hasattr(torch, _name):  # Of later versions.
        _DTYPES[getattr(torch, _name)] = _code
_PLAIN = (torch.Tensor, torch.nn.Parameter)
# A sparse tensor of more elements is not made dense: it may be larger than memory.
_MAX_DENSE = 1 << 24

_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)


def is_traced():
    """Whether torch is recording what runs now, to run it again: then nothing is to be read."""
    if _is_compiling is not None and _is_compiling():
        return True
    return torch._C._get_tracing_state() is not None


def _has_memory(tensor):
    storage = (getattr(tensor, "untyped_storage", None) or tensor.storage)()
    end = (tensor.storage_offset() + _extent(tensor)) * tensor.element_size()
    return tensor.data_ptr() != 0 and end <= storage.nbytes()


def _extent(tensor):
    """Elements from the first to the last in memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def _plain(tensor):
    """The tensor as strided values in main memory; or the reason why it cannot be had."""
    if type(tensor) not in _PLAIN:
        if hasattr(type(tensor), "to_local"):
            tensor = tensor.to_local()
        if type(tensor) not in _PLAIN:
            return "subclass"
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        if tensor.numel() > _MAX_DENSE:
            return "sparse"
        tensor = tensor.to_dense()
    if tensor.device.type == "meta":
        return "meta"
    if tensor.device.type != "cpu":
        tensor = tensor.to("cpu")
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor


def describe(tensor):
    """(the tensor to hold on to, address, dtype, shape, strides) of its values in main memory; the reason, a
    text, where they cannot be read.
    """
    tensor = _plain(tensor)
    if isinstance(tensor, str):
        return tensor
    if tensor.dtype not in _DTYPES:
        return "dtype"
    if tensor.dim() > 16:
        return "dimensions"
    if tensor.numel() == 0:
        return tensor, 0, _DTYPES[tensor.dtype], tuple(tensor.shape), None
    if not _has_memory(tensor):
        return "storage"
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return tensor, tensor.data_ptr(), _DTYPES[tensor.dtype], tuple(tensor.shape), strides


def to_numpy(tensor):
    """A copy of it as a numpy array; what numpy has no type for as float32. None: it cannot be read."""
    tensor = _plain(tensor)
    if isinstance(tensor, str):
        return None
    if tensor.dtype is torch.bfloat16 or str(tensor.dtype).startswith("torch.float8"):
        tensor = tensor.float()
    return tensor.clone().numpy()
