# SPDX-License-Identifier: Apache-2.0
"""Process groups: the rank; the time spent in collectives called from Python, with a span and the bytes of each; what
DistributedDataParallel measures of its own, which calls none from Python.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import _session, _spans
from ..._native import probe
from ..hooking import COMM_WAIT, NEW_GROUP, hook, hook_everywhere
from . import modules

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


_LOGGED = {
    "avg_forward_compute_time": "forward_ns",
    "avg_backward_compute_time": "backward_ns",
    "avg_backward_comm_time": "communication_ns",
    "avg_backward_compute_comm_overlap_time": "overlap_ns",
    "total_parameter_size_bytes": "bytes",
    "world_size": "world_size",
    "backend_name": "backend",
}
# By name: _probe.Hook.
_hooks: dict[str, Any] = {}
_told = False
_parallel: dict[str, Any] | None = None


def _measured() -> None:
    """What the first DistributedDataParallel says of the newest step that it measured; its model may be gone when the
    process ends.
    """
    global _parallel
    for root in modules.roots():
        outer = root.outer()
        logged = getattr(outer, "_get_ddp_logging_data", None)
        if type(outer).__name__ == "DistributedDataParallel" and logged is not None:
            data = dict(logged())
            _parallel = {ours: data[theirs] for theirs, ours in _LOGGED.items() if theirs in data}
            return


def _look() -> None:
    """The first forward of a root module."""
    if any(type(root.outer()).__name__ == "DistributedDataParallel" for root in modules.roots()):
        _spans.each_second(_measured)


def _awake(_: int) -> None:
    """A forked child tells of its own: what its parent measured is none of it."""
    global _told, _parallel
    _told = False
    _parallel = None


def _tell() -> None:
    """At the end of a process: what its collectives were, by operation."""
    global _told
    if _told or not probe.active():
        return
    _told = True
    operations = {}
    for name, made in _hooks.items():
        calls, moved, ns = probe.hook_totals(made)
        if calls:
            operations[name] = {"calls": calls, "bytes": moved, "duration_ns": ns}
    if operations or _parallel:
        _spans.emit("collectives", "torch.distributed", {"operations": operations, "parallel": _parallel})


def install(torch: ModuleType) -> None:
    if not torch.distributed.is_available():
        return
    homes = (torch.distributed.distributed_c10d, torch.distributed)
    for name in _COLLECTIVES:
        hook_everywhere(homes, name, COMM_WAIT, f"collective.{name}")
        found = vars(homes[0]).get(name)
        if type(found) is probe.Hook:
            _hooks[name] = found
    hook_everywhere(homes, "init_process_group", NEW_GROUP)
    work = getattr(torch._C._distributed_c10d, "Work", None)
    if work is not None:
        if hook(work, "wait", COMM_WAIT, "collective.wait"):
            _hooks["wait"] = vars(work)["wait"]
    modules.at_root(_look)
    _session.on_wake(_awake)
    _session.at_end(_tell)
