# SPDX-License-Identifier: Apache-2.0
"""PyTorch: puts hooks around the calls that make up a training step.

Nothing is attached to models, tensors, optimizers or loaders, so nothing of ours is copied, pickled
or traced with them: only functions and methods of torch's own classes are replaced, by callables
that look like them (telltale._probe.Hook).
"""

from __future__ import annotations

from types import ModuleType

from ... import _session
from ..._native import note, probe
from . import (
    again,
    batches,
    comm,
    compiles,
    copies,
    data,
    debug_modes,
    device,
    device_phases,
    epochs,
    events,
    exceptions,
    gradients,
    holders,
    kineto,
    length,
    loggers,
    loop_mode,
    loss,
    loss_function,
    memory,
    modules,
    not_finite,
    optim,
    optimizer_parameters,
    outputs,
    parameters,
    process,
    scaler,
    schedulers,
    spans,
    tensors,
)

_PARTS = (
    process,
    events,
    exceptions,
    tensors,
    device,
    modules,
    loss,
    scaler,
    gradients,
    parameters,
    outputs,
    optim,
    optimizer_parameters,
    loop_mode,
    batches,
    loss_function,
    not_finite,
    debug_modes,
    schedulers,
    data,
    length,
    epochs,
    again,
    holders,
    comm,
    loggers,
    compiles,
    copies,
    spans,
    memory,
    device_phases,
    kineto,
)


def install(torch: ModuleType) -> None:
    """Hooks torch, once; later calls (a reload) hook what is not hooked."""
    if probe is None:
        return
    _session.start()
    for part in _PARTS:
        try:
            part.install(torch)
        except Exception as error:
            # This part stays unhooked; the others still tell their share.
            note(f"torch: {part.__name__} not hooked: {type(error).__name__}: {error}")
            events.not_hooked(part.__name__, error)
