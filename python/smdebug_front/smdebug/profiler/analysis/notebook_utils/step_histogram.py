# SPDX-License-Identifier: Apache-2.0
"""A histogram of step times."""

from ...unserved import unserved

StepHistogram = unserved("StepHistogram", "open the page of the run (telltale serve RUN) or its report")
