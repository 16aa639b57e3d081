# SPDX-License-Identifier: Apache-2.0
"""Step times over time."""

from ...unserved import unserved

StepTimelineChart = unserved(
    "StepTimelineChart", "open the page of the run (telltale serve RUN) or its report"
)
