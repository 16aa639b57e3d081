# SPDX-License-Identifier: Apache-2.0
"""System metrics over time."""

from ...unserved import unserved

TimelineCharts = unserved("TimelineCharts", "open the page of the run (telltale serve RUN) or its report")
