# SPDX-License-Identifier: Apache-2.0
"""Says that part of a run could not be read."""

from __future__ import annotations

import warnings
from typing import Any

from .errors import DamageWarning


def warn(path: str, what: str, damage: dict[str, Any], depth: int) -> None:
    """`damage` as the library counts it, nothing where it is empty; `depth`: frames up to the caller who is told."""
    if not damage:
        return
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in damage.items() if name != "notes" and n)
    warnings.warn(
        f"part of {path} cannot be read ({counts}): {what} holds what can; `telltale verify` names the places",
        DamageWarning,
        stacklevel=depth,
    )
