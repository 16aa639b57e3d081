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

Plan = Union[str, "os.PathLike[str]", Mapping[str, Any]]


def request_of(plan: Plan, add: bool) -> str:
    """The body of a request (docs/formats/requests.md) as JSON.

    Args:
        plan: the name of a level; a plan as a mapping (the keys of docs/formats/plan.md); the text of a
            plan file, which has a line break or an equals sign; or the path of one.
        add: to what is recorded now, instead of in its place.

    Raises:
        TypeError: `plan` is none of these, or holds what JSON has not.
        ValueError: more than 4 KiB.
        OSError: the file cannot be read.
    """
    body: dict[str, Any] = {"base": "current" if add else "none"}
    if isinstance(plan, Mapping):
        body["plan"] = dict(plan)
    elif isinstance(plan, str) and plan in LEVELS:
        body["plan"] = {"level": plan}
    elif isinstance(plan, str) and ("\n" in plan or "=" in plan):
        body["toml"] = plan
    elif isinstance(plan, (str, os.PathLike)):
        with open(plan, encoding="utf-8") as file:
            body["toml"] = file.read()
        body["where"] = os.path.basename(os.fspath(plan))
    else:
        raise TypeError("telltale.capture: the plan must be a level, a mapping, or a plan file or its text")
    text = json.dumps(body, separators=(",", ":"))
    if len(text.encode("utf-8")) > MAX_BYTES:
        raise ValueError(
            f"telltale.capture: the plan is above {MAX_BYTES} bytes as JSON: "
            "use `telltale capture RUN --plan FILE`"
        )
    return text
