# SPDX-License-Identifier: Apache-2.0
"""The statistics of a tensor as torch itself computes them, in float64."""

from __future__ import annotations

from typing import Any

import torch


def numbers(tensor: torch.Tensor) -> dict[str, Any]:
    """Over the finite elements (of complex numbers: their absolute values)."""
    x = tensor.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.is_quantized:
        x = x.dequantize()
    x = x.resolve_conj().resolve_neg()
    x = x.to(torch.complex128).abs() if x.is_complex() else x.double()
    finite = x[torch.isfinite(x)]
    out: dict[str, Any] = {
        "count": x.numel(),
        "nan": int(torch.isnan(x).sum()),
        "inf": int(torch.isinf(x).sum()),
        "zero": int((x == 0).sum()),
    }
    if finite.numel():
        out.update(
            min=finite.min().item(),
            max=finite.max().item(),
            mean=finite.mean().item(),
            # About one of the values: that equal ones deviate by nothing is exact, as by their rounded mean it is not.
            std=(finite - finite[0]).std(unbiased=False).item(),
            l1=finite.abs().sum().item(),
            l2=finite.square().sum().sqrt().item(),
            mean_abs=finite.abs().mean().item(),
        )
    return out


def row(collection: str, name: str, mode: str, step: int, tensor: torch.Tensor) -> dict[str, Any]:
    """What torch_lab.check compares a row of the table `statistics` with."""
    return {
        "collection": collection,
        "name": name,
        "mode": mode,
        "step": step,
        "dtype": str(tensor.dtype).rpartition(".")[2],
        "shape": list(tensor.shape),
        **numbers(tensor),
    }
