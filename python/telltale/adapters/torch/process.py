# SPDX-License-Identifier: Apache-2.0
"""What torch knows about this process: a data loader's worker, or a rank of a process group."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import TRAINER, WORKER, find_kind_with, on_wake

_torch: Any = None


def _kind() -> int | None:
    if _torch.utils.data.get_worker_info() is not None:
        return WORKER
    return None


def set_rank() -> None:
    """Takes the rank from the process group, where there is one."""
    distributed = _torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        probe.set_rank(distributed.get_rank())


def _awake(kind: int) -> None:
    if kind == WORKER:
        info = _torch.utils.data.get_worker_info()
        if info is not None:
            facts = json.dumps({"worker_id": info.id, "workers": info.num_workers})
            probe.event("worker.start", 0, f"worker:{info.id}", "", facts)
    elif kind == TRAINER:
        set_rank()


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    find_kind_with(_kind)
    on_wake(_awake)
    probe.configure(on_group=set_rank)
