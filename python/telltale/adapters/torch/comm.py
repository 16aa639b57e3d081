# SPDX-License-Identifier: Apache-2.0
"""Process groups: the rank, and the time spent waiting in collectives called from Python."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .hooking import COMM_WAIT, NEW_GROUP, hook

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)


def _hook_everywhere(torch: Any, name: str, kind: int) -> None:
    """Once in the module that defines it; the same hook where it is exported again."""
    inner = torch.distributed.distributed_c10d
    original = vars(inner).get(name)
    if hook(inner, name, kind) and vars(torch.distributed).get(name) is original:
        setattr(torch.distributed, name, vars(inner)[name])


def install(torch: ModuleType) -> None:
    if not torch.distributed.is_available():
        return
    for name in _COLLECTIVES:
        _hook_everywhere(torch, name, COMM_WAIT)
    _hook_everywhere(torch, "init_process_group", NEW_GROUP)
    work = getattr(torch._C._distributed_c10d, "Work", None)
    if work is not None:
        hook(work, "wait", COMM_WAIT)
