# SPDX-License-Identifier: Apache-2.0
"""Runs a script in a process that is recorded: its plan is there before it begins, so the first step is compared too.

usage: torch_recorded.py SCRIPT [ARGS...]
"""

import runpy
import sys
from pathlib import Path

import torch  # noqa: F401  Its adapter loads the probe.

assert sys.modules["telltale._probe"].ready(0)
runpy.run_path(str(Path(__file__).parents[1] / "support" / "await_plan.py"))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
