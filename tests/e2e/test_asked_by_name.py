# SPDX-License-Identifier: Apache-2.0
"""What is asked for by name goes before the budget of 1 %, in real trainings: its first 20 captures come at their
interval, whichever way it is asked for; where they would take more than a fifth of the run a line at its start says
what is taken in their place; what shows whether the training lives is never thinned."""

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import REPO, Telltale

TRAIN = REPO / "tests/e2e/train_asked.py"
EVERY = 2
STEPS = 100
FIRST = [EVERY * i for i in range(20)]

NOTEBOOK = """
import sys
from telltale.sagemaker import LocalEstimator
from telltale.sagemaker.debugger import CollectionConfig, DebuggerHookConfig
name, script, steps, every = sys.argv[1:]
hook = DebuggerHookConfig(collection_configs=[
    CollectionConfig(name, parameters={"train.save_interval": every, "reductions": "min,max"})
])
LocalEstimator(script, hyperparameters={"steps": steps}, debugger_hook_config=hook, output_path="runs").fit(
    job_name="job", logs=False
)
"""


def captured(telltale: Telltale, run: Path, collection: str) -> list[int]:
    """TRAIN steps of which there is something of a collection, each once."""
    where = f"collection = '{collection}' and mode = 'TRAIN'"
    rows = [
        row
        for table in ("statistics", "tensors")
        for row in telltale.rows(run, table, "--where", where, "--columns", "step")
    ]
    return sorted({row["step"] for row in rows})


def estimate(telltale: Telltale, folder: Path) -> Path:
    """The run of a job that a notebook starts."""
    (folder / "notebook.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [telltale.python, "notebook.py", "gradients", TRAIN, str(STEPS), str(EVERY)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPO / "python"),
            "TELLTALE_PREFIX": str(telltale.binary.parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "job"


@pytest.mark.parametrize(
    ("way", "collection"),
    [("collect", "gradients"), ("rule", "labels"), ("estimator", "gradients"), ("call", "gradients")],
)
def test_its_first_20_captures_come_at_their_interval(
    telltale: Telltale, tmp_path: Path, way: str, collection: str
) -> None:
    every = EVERY
    if way == "estimator":
        run = estimate(telltale, tmp_path)
    else:
        run = tmp_path / "run"
        asked: list[str] = []
        steps, options = STEPS, []
        if way == "collect":
            asked = ["--collect", f"gradients:interval={EVERY}"]
        elif way == "rule":
            # As often as the rule needs it.
            asked, every = ["--rule", "ClassImbalance"], 10
            steps = 25 * every
        else:
            # The plan holds once the agent has answered, however busy the machine is.
            steps, options = 10 * STEPS, ["--capture", f"[collections.gradients]\ninterval = {EVERY}"]
        done = telltale("run", "-o", run, *asked, "--", telltale.python, TRAIN, "--steps", steps, *options)
        assert done.returncode == 0, done.stderr
    steps_of_it = captured(telltale, run, collection)
    begin = 0
    if way == "call":  # It holds from one of the steps on; those before were the default plan's.
        begin = next(step for step, later in pairwise(steps_of_it) if later - step == EVERY)
        steps_of_it = [step for step in steps_of_it if step >= begin]
    assert steps_of_it[:20] == [begin + every * i for i in range(20)]


def test_beside_a_level_it_alone_is_asked_for(telltale: Telltale, tmp_path: Path) -> None:
    """The floor of 10 us a step leaves no room for any capture, and the level's all is taken at each step."""
    run = tmp_path / "run"
    words = ["--level", "all", "--collect", f"gradients:interval={EVERY}"]
    training = [telltale.python, TRAIN, "--steps", STEPS]
    done = telltale("run", "-o", run, "--overhead", "0.01%", *words, "--", *training)
    assert done.returncode == 0, done.stderr
    assert set(FIRST) <= set(captured(telltale, run, "gradients"))
    plans = telltale.rows(run, "events", "--where", "kind = 'plan'", "--columns", "data")
    collections = json.loads(plans[0]["data"])["plan"]["collections"]
    assert {name for name, one in collections.items() if one.get("asked")} == {"gradients"}
