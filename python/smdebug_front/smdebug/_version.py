# SPDX-License-Identifier: Apache-2.0
"""The version of smdebug whose documented interface is served; "+telltale" says by whom."""

__version__ = "1.0.34+telltale"
