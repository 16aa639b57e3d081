# SPDX-License-Identifier: Apache-2.0
"""Cores and devices over time."""

from ...unserved import unserved

Heatmap = unserved("Heatmap", "open the page of the run (telltale serve RUN) or its report")
