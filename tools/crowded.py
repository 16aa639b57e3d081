# SPDX-License-Identifier: Apache-2.0
"""Whether other programs of the machine had the cores while a run was recorded: asked by the demo's check and by the
tests of planted trainings, which then do not judge what such programs do to a training.
"""

from __future__ import annotations

from typing import Any

OF_THE_RUN = ("training_cpu", "workers_cpu", "other_ranks_cpu", "other_processes_cpu")


def crowded(findings: list[dict[str, Any]]) -> bool:
    """Whether a finding says that other programs took more of the cores than any part of the run."""
    for finding in findings:
        if finding["rule"] == "CPUBottleneck":
            taken = finding["evidence"]
            if taken["other_programs_cpu"] > max(taken[name] for name in OF_THE_RUN):
                return True
    return False
