# SPDX-License-Identifier: Apache-2.0
"""Charts of data loaders."""

from ...unserved import unserved

PT_dataloader_analysis = unserved(
    "PT_dataloader_analysis", "the rule InputBound judges data loaders: telltale check RUN"
)
