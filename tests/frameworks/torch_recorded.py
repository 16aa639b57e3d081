# SPDX-License-Identifier: Apache-2.0
"""Runs a script in a process that is recorded: the plan is there with the process, so the first step is compared too.

usage: torch_recorded.py SCRIPT [ARGS...]
"""

import runpy
import sys

import torch  # noqa: F401  Its adapter loads the probe.

probe = sys.modules["telltale._probe"]
assert probe.ready(0)
assert probe.plan_epoch() != 0, "no plan has arrived"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
