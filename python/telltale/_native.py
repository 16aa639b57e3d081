# SPDX-License-Identifier: Apache-2.0
"""The native binding, or None where this process is not recorded or cannot load it."""

from __future__ import annotations

import os
import stat
from typing import Any


def _load() -> Any:
    if "TELLTALE_SOCKET" not in os.environ:
        return None
    try:
        from . import _probe  # type: ignore[attr-defined]
    except ImportError as error:
        note(f"telltale: cannot load the native probe: {error}")
        return None
    return _probe


def note(text: str) -> None:
    """Appends a line to the probe's log file (TELLTALE_PROBE_LOG); never raises."""
    path = os.environ.get("TELLTALE_PROBE_LOG")
    if not path:
        return
    try:
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, how, 0o600)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.write(fd, f"pid {os.getpid()}: {text}\n".encode("utf-8", "replace"))
        finally:
            os.close(fd)
    except OSError:
        pass


probe: Any = _load()
