# SPDX-License-Identifier: Apache-2.0
"""Profiles of Python functions."""

from ..unserved import unserved

cProfileAnalysis = unserved("cProfileAnalysis", "Telltale records no Python profiles")  # noqa: N816
PyinstrumentAnalysis = unserved("PyinstrumentAnalysis", "Telltale records no Python profiles")
