# SPDX-License-Identifier: Apache-2.0
"""Whether another profiler is at work. A thread has one profile function: who sets another takes the place of the first."""

from __future__ import annotations

import sys

from ._native import probe

# The tool of sys.monitoring that stands for the profile functions of all threads; get_tool does not know it.
_PROFILE_FUNCTIONS = 6


def profiler_at_work() -> str:
    """Which profiler is at work in this thread; empty: none is."""
    function = sys.getprofile()
    if function is not None:
        return f"a profile function is set ({type(function).__name__}: cProfile, or the like)"
    monitoring = getattr(sys, "monitoring", None)  # Since 3.12; cProfile works by it, and VizTracer.
    if monitoring is None:
        # Of a profiler in C that has no object of Python's, getprofile gives None.
        in_c = probe is not None and probe.has_profile_function() is not False
    else:
        tool = monitoring.get_tool(monitoring.PROFILER_ID)
        if tool:
            return f"{tool} monitors the interpreter"
        all_events = getattr(monitoring, "_all_events", None)
        in_c = all_events is None or any(tools >> _PROFILE_FUNCTIONS & 1 for tools in all_events().values())
    return "a profile function is set that Python does not show (yappi, or the like)" if in_c else ""


def stop_profile(function: object) -> None:
    """Takes our profile function away where it is the one that is set: another's stays."""
    if sys.getprofile() is function:
        sys.setprofile(None)
