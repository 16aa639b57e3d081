# SPDX-License-Identifier: Apache-2.0
"""Statistics over a PandasFrame."""

from ...unserved import unserved

PandasFrameAnalysis = unserved(
    "PandasFrameAnalysis", "run.findings() and the tables of telltale.open(RUN) have what it computes"
)
