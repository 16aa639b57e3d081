# SPDX-License-Identifier: Apache-2.0
"""Runs a script once the plan has arrived in the process, which takes a moment: what comes before is not recorded,
and a comparison wants the first step too.

usage: torch_recorded.py SCRIPT [ARGS...]
"""

import runpy
import sys
import threading
import time

import torch  # noqa: F401  Its adapter loads the probe.

probe = sys.modules["telltale._probe"]
assert probe.ready(0)
limit = time.monotonic() + 60
while probe.plan_epoch() == 0 and time.monotonic() < limit:
    threading.Event().wait(0.001)
assert probe.plan_epoch() != 0, "no plan has arrived"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
