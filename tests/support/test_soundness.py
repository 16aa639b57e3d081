# SPDX-License-Identifier: Apache-2.0
"""The checks of soundness.py see what they are there for."""

import copy
from typing import Any

import pytest
import soundness

SOUND: dict[str, Any] = {
    "verdict": "Data loading takes 60 % of step time: 6.00 s of 10.0 s lost.",
    "elapsed_seconds": 10.0,
    "lost_seconds": 6.0,
    "run_phases": [{"name": "training loop", "seconds": 10.0, "share": 1.0}],
    "findings": [
        {
            "id": "a",
            "rule": "InputBound",
            "subject": "rank 0",
            "severity": "high",
            "message": "Data loading takes 60 % of step time",
            "cause": "The loader runs in the training process.",
            "advice": "Set num_workers=2.",
            "cost_seconds": 6.0,
            "start_ns": 1,
            "end_ns": 2,
            "first_step": 3,
            "last_step": 90,
            "evidence": {"share": 0.6, "step_ms": 10},
        }
    ],
    "groups": [{"findings": ["a"], "severity": "high", "lost_seconds": 6.0, "gain_seconds": 5.0}],
}


def test_a_sound_verdict_has_no_fault() -> None:
    assert soundness.faults(SOUND) == []


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("verdict",), "Steps take long: 1 s lost.", "title"),
        (("lost_seconds",), 11.0, "lost"),
        (("run_phases", 0, "share"), 1.25, "phases"),
        (("groups", 0, "findings"), [], "order"),
        (("groups", 0, "severity"), "low", "group"),
        (("groups", 0, "gain_seconds"), 7.0, "gains"),
        (("findings", 0, "cost_seconds"), 54.3, "costs"),
        (("findings", 0, "end_ns"), 0, "ends before"),
        (("findings", 0, "advice"), "", "advice"),
        (("findings", 0, "cause"), "backward is 125 % of the difference", "125"),
        (("findings", 0, "evidence", "share"), 1.25, "share"),
        (("findings", 0, "evidence", "step_ms"), -0.1, "step_ms"),
    ],
)
def test_each_fault_is_seen(path: tuple[Any, ...], value: Any, word: str) -> None:
    document = copy.deepcopy(SOUND)
    if path == ("groups", 0, "findings"):
        document["groups"] = []
    else:
        at = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
    assert any(word in fault for fault in soundness.faults(document)), soundness.faults(document)
