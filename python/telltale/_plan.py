# SPDX-License-Identifier: Apache-2.0
"""telltale.capture(): another capture plan for the run, asked for from inside the training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Union

LEVELS = ("system", "steps", "tensors", "operators", "all")
# What one event of the probe holds.
MAX_BYTES = 4096
# Of a reason, so that it fits into an event whatever its characters are escaped to.
_MAX_REASON = 300

Plan = Union[str, "os.PathLike[str]", Mapping[str, Any]]


def check(plan: Plan) -> None:
    """Refuses what no plan is, recorded or not, so that a try without Telltale finds it.

    Raises:
        TypeError: `plan` is neither a text, nor a path, nor a mapping.
    """
    if not isinstance(plan, (str, os.PathLike, Mapping)):
        raise TypeError("telltale.capture: the plan must be a level, a mapping, or a plan file or its text")


def request_of(plan: Plan, add: bool) -> str:
    """The body of a request (docs/formats/requests.md) as JSON of at most MAX_BYTES.

    Raises nothing: what cannot be read or sent becomes a request that the agent refuses with the reason, since
    the training must not end of a file that is missing.

    Args:
        plan: the name of a level; a plan as a mapping (the keys of docs/formats/plan.md); the path of a plan
            file; or the text of one, which has a line break or an equals sign.
        add: to what is recorded now, instead of in its place.
    """
    base: dict[str, Any] = {"base": "current" if add else "none", "asked": True}
    try:
        text = _json({**base, **_body_of(plan)})
        if len(text) <= MAX_BYTES:
            return text
        trouble = f"the plan is {len(text)} bytes as JSON, above {MAX_BYTES}: use `telltale capture RUN --plan FILE`"
    except Exception as error:
        trouble = f"the plan cannot be sent: {type(error).__name__}: {error}"
    return _json({**base, "trouble": trouble[:_MAX_REASON]})


def _body_of(plan: Plan) -> dict[str, Any]:
    if isinstance(plan, Mapping):
        return {"plan": dict(plan)}
    if isinstance(plan, str) and plan in LEVELS:
        return {"plan": {"level": plan}}
    # A file before a text: the path of one may hold an equals sign.
    if isinstance(plan, str) and ("\n" in plan or ("=" in plan and not os.path.isfile(plan))):
        return {"toml": plan}
    if not os.path.isfile(plan):  # Nor is a pipe opened, which might never be written to.
        raise FileNotFoundError(f"no level and no plan file '{os.fspath(plan)}'")
    with open(plan, encoding="utf-8-sig") as file:
        return {"toml": file.read(MAX_BYTES + 1), "where": os.path.basename(os.fspath(plan))}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has for a number or an array of numpy's or torch's, and for a mapping or set."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"JSON has nothing for a {type(value).__name__}")
