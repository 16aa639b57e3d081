# SPDX-License-Identifier: Apache-2.0
"""Lists the steps of one tensor and reads all its values through smdebug's trial; prints JSON.

usage: smdebug_read.py FOLDER    (an interpreter that has smdebug: bench/smdebug_peer.py)
"""

import json
import logging
import sys
import time

import numpy
from smdebug.trials import create_trial

logging.disable(logging.WARNING)
begin = time.perf_counter()
tensor = create_trial(sys.argv[1]).tensor("small")
steps = tensor.steps()
values = numpy.stack([tensor.value(step) for step in steps])
seconds = time.perf_counter() - begin
print(json.dumps({"seconds": seconds, "steps": len(steps), "sum": float(values.sum(dtype=numpy.float64))}))
