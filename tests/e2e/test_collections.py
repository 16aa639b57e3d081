# SPDX-License-Identifier: Apache-2.0
"""Collections of the user's own, by pattern, name and module, each with its steps of each mode, on a real training:
exactly what they say is recorded.
"""

from pathlib import Path

import pytest
from conftest import REPO, Telltale

FILE = r"""
[collections.answered]
tensors = ["answered"]
interval = 1

[collections.heads]
include = ['^(gradient/)?head\.']
exclude = ["bias"]
train = { interval = 8, start = 10, end = 30 }
eval = { interval = 1, end = 5 }

[collections.named]
tensors = ["encoder.1.output", "encoder.2.bias"]
steps = [5, 7, 9]

[collections.part]
modules = ["encoder.2"]
train = { steps = [6] }
eval = { interval = 5, start = 6 }

[collections.own]
global = { interval = 10, steps = [21] }
"""
OPTIONS = (
    "answered:tensors=answered,interval=1",
    r"heads:include=^(gradient/)?head\.,exclude=bias,"
    "train.interval=8,train.start=10,train.end=30,eval.interval=1,eval.end=5",
    "named:tensors=encoder.1.output+encoder.2.bias,steps=5+7+9",
    "part:modules=encoder.2,train.steps=6,eval.interval=5,eval.start=6",
    "own:global.interval=10,global.steps=21",
)
# Until the names are answered; of GLOBAL as of TRAIN.
FIRST_EPOCH = {"TRAIN": 4, "EVAL": 2, "GLOBAL": 4}
HEAD = ("head.weight", "head.input.0", "head.output")
HEAD_TRAINED = ("gradient/head.weight", "head.weight.momentum_buffer")
PART = ("encoder.2.weight", "encoder.2.bias", "encoder.2.input.0", "encoder.2.output")
PART_TRAINED = (
    "gradient/encoder.2.weight",
    "gradient/encoder.2.bias",
    "encoder.2.weight.momentum_buffer",
    "encoder.2.bias.momentum_buffer",
)


def expected() -> dict[tuple[str, str], set[int]]:
    """(mode, name) -> steps, from the second epoch on."""
    steps = {("TRAIN", name): {16, 24} for name in (*HEAD, *HEAD_TRAINED)}
    steps |= {("EVAL", name): {2, 3, 4} for name in HEAD}
    steps |= {("TRAIN", name): {6} for name in (*PART, *PART_TRAINED)}
    steps |= {("EVAL", name): {10, 15} for name in PART}
    for mode in ("TRAIN", "EVAL"):
        steps[mode, "encoder.1.output"] = {5, 7, 9}
        # Of two collections: what either takes.
        steps[mode, "encoder.2.bias"] |= {5, 7, 9}
    steps["GLOBAL", "whole"] = {10, 20, 21, 30}
    return steps


@pytest.mark.parametrize("form", ["file", "options"])
def test_custom_collections_at_their_steps_of_each_mode(
    telltale: Telltale, tmp_path: Path, form: str
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(FILE)
    options = ["--plan", str(plan)]
    if form == "options":
        options = ["--level", "system", *(word for text in OPTIONS for word in ("--collect", text))]
    run = tmp_path / "run"
    script = REPO / "tests/e2e/train_modes.py"
    done = telltale(
        "run", "-o", run, "--quiet", "--overhead", "100%", *options, "--", telltale.python, script
    )
    assert done.returncode == 0, done.stderr
    recorded: dict[tuple[str, str], set[int]] = {}
    for row in telltale.rows(run, "statistics", "--limit", "1000000"):
        if row["step"] >= FIRST_EPOCH[row["mode"]]:
            recorded.setdefault((row["mode"], row["name"]), set()).add(row["step"])
    assert recorded == expected()
