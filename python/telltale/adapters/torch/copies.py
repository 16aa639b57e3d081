# SPDX-License-Identifier: Apache-2.0
"""Copies between the host and a device that a loop makes itself, by Tensor.to, .cuda and .cpu: the spans `host_to_device` and
`device_to_host` where one holds the training up, and what they come to in the event `copies`.

A training on the CPU never has these methods hooked: they are once a model lies on a device. Nor has one that torch.compile
works on, which looks at the methods themselves: the hooks are gone before it does.
"""

from __future__ import annotations

import sys
import weakref
from types import ModuleType
from typing import Any

from ... import _session, _spans
from ..._native import note, probe
from ..hooking import MOVE
from . import modules

LEAST_NS = 1_000_000
"""Shorter copies have no span."""

_METHODS = ("to", "cuda", "cpu")
# Looks at models until one on a device is found: a program may make a model for each step.
_MAX_LOOKS = 64

_torch: Any = None
_looks = 0
# Not to be hooked any more, or not at all.
_over = False
_hooked = False
_told = False


def _compiler() -> str:
    """Of torch.compile: "none" where this torch has none, "idle" where it has compiled nothing and will tell us, "unknown" where
    it is not loaded yet, "busy".
    """
    if not hasattr(_torch, "compile"):
        return "none"
    callback = sys.modules.get("torch._dynamo.callback")
    utils = sys.modules.get("torch._dynamo.utils")
    if callback is None or utils is None:
        return "unknown"
    handler = getattr(callback, "callback_handler", None)
    if handler is None or utils.counters.get("frames"):
        return "busy"
    _be_told(handler)
    return "idle"


def _be_told(handler: Any) -> None:
    """Has Dynamo call us where it begins to look at code. torch._dynamo.reset() forgets whom it was to call: where it lets go
    of our callback, which nobody else holds, that is taken for a beginning too.
    """

    def begins(*_: Any) -> None:
        _compiles()

    handler.register_start_callback(begins)
    let_go: Any = weakref.finalize(begins, _compiles)
    let_go.atexit = False


def _compiles(*_: Any) -> None:
    """It looks at code, or may without telling us."""
    global _over
    _over = True
    _unhook()


def _unhook() -> None:
    global _hooked
    if not _hooked:
        return
    _hooked = False
    tensor = _torch.Tensor
    for name in _METHODS:
        # What somebody else has put over it since stays.
        if type(vars(tensor).get(name)) is probe.Hook:
            delattr(tensor, name)


def _hook() -> None:
    global _hooked, _over
    state = "busy" if _over else _compiler()
    if state == "unknown":
        _spans.each_second(_hook)
        return
    _spans.not_each_second(_hook)
    _over = True
    if state == "busy":
        return
    tensor = _torch.Tensor
    _hooked = True
    for name in _METHODS:
        # They are methods of its base class: one of its own is somebody's replacement.
        original = getattr(tensor, name, None)
        if original is not None and name not in vars(tensor):
            setattr(tensor, name, probe.Hook(original, MOVE, "host_to_device", LEAST_NS))


def _look_at(module: Any) -> None:
    global _looks, _over
    if _over or module is None:
        return
    _looks += 1
    try:
        parameter = next(module.parameters(), None)
        if parameter is not None and parameter.device.type != "cpu":
            _hook()
        elif _looks >= _MAX_LOOKS:
            _over = True
    except Exception as error:
        _over = True
        note(f"torch: copies are not told: {type(error).__name__}: {error}")


def _look() -> None:
    """The first forward of a root module."""
    if not _over:
        _look_at(modules.newest())


def moved(args: tuple[Any, ...], kwargs: dict[str, Any], ns: int) -> None:
    """A module was moved, which took its time."""
    if args:
        _look_at(args[0])


def _awake(_: int) -> None:
    global _told
    _told = False


def _tell() -> None:
    """At the end of a process: what its copies were, by direction."""
    global _told
    if _told or not probe.active():
        return
    _told = True
    facts = {}
    for name, to_host in (("host_to_device", False), ("device_to_host", True)):
        calls, moved_bytes, ns = probe.copy_totals(to_host)
        if calls:
            facts[name] = {"calls": calls, "bytes": moved_bytes, "duration_ns": ns}
    if facts:
        _spans.emit("copies", "torch", facts)


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    probe.configure(function_mode=getattr(torch._C, "_is_torch_function_mode_enabled", None))
    modules.at_root(_look)
    _session.on_wake(_awake)
    _session.at_end(_tell)
