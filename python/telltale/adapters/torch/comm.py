# SPDX-License-Identifier: Apache-2.0
"""Process groups: the rank, and the time spent waiting in collectives called from Python."""

from __future__ import annotations

from types import ModuleType

from .hooking import COMM_WAIT, NEW_GROUP, hook, hook_everywhere

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


def install(torch: ModuleType) -> None:
    if not torch.distributed.is_available():
        return
    homes = (torch.distributed.distributed_c10d, torch.distributed)
    for name in _COLLECTIVES:
        hook_everywhere(homes, name, COMM_WAIT)
    hook_everywhere(homes, "init_process_group", NEW_GROUP)
    work = getattr(torch._C._distributed_c10d, "Work", None)
    if work is not None:
        hook(work, "wait", COMM_WAIT)
