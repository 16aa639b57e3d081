# SPDX-License-Identifier: Apache-2.0
"""Histograms of system metrics."""

from ...unserved import unserved

MetricsHistogram = unserved("MetricsHistogram", "open the page of the run (telltale serve RUN) or its report")
