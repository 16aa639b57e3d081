# SPDX-License-Identifier: Apache-2.0
"""The thread whose calls make the steps: what other threads compute belongs to no step."""

from __future__ import annotations

import os
import threading

_owner = threading.main_thread().ident


def claim() -> None:
    """The calling thread has called an optimizer."""
    global _owner
    _owner = threading.get_ident()


def owns() -> bool:
    """Whether the calling thread makes the steps."""
    return threading.get_ident() == _owner


os.register_at_fork(after_in_child=claim)
