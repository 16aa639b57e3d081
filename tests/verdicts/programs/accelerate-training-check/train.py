# SPDX-License-Identifier: Apache-2.0
"""The training that Accelerate brings to check itself: regressions with its loaders, on one process."""

from accelerate import Accelerator
from accelerate.test_utils.scripts.test_script import training_check

Accelerator()
training_check()
