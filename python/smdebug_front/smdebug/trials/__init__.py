# SPDX-License-Identifier: Apache-2.0
"""Reading what was saved, while it is being saved and afterwards."""

from ..profiler.unserved import unserved
from .trial import LocalTrial, Trial
from .utils import create_trial

S3Trial = unserved("S3Trial", "copy the folder first (aws s3 sync) and open it with create_trial()")
ProfilerTrial = unserved("ProfilerTrial", "open the run with telltale.open()")

__all__ = ["LocalTrial", "ProfilerTrial", "S3Trial", "Trial", "create_trial"]
