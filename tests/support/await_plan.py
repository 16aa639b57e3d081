# SPDX-License-Identifier: Apache-2.0
"""Waits until a recorded process has its plan, and does nothing in a process that is not recorded.

A process waits 20 ms for its plan and afterwards takes it at the borders of steps, so on a busy machine its first
steps may be without. The wait is the tests' alone: what they compare is to have all steps. Scripts run this file by
runpy, after their framework, whose adapter loads the probe.
"""

import sys
import time

probe = sys.modules.get("telltale._probe")
deadline = time.monotonic() + 120
while probe is not None and probe.ready(0) and probe.plan_epoch() == 0:
    assert time.monotonic() < deadline, "no plan has arrived"
    time.sleep(0.001)
