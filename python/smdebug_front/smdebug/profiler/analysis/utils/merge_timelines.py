# SPDX-License-Identifier: Apache-2.0
"""One trace of everything."""

from ...unserved import unserved

MergedTimeline = unserved("MergedTimeline", "open the page of the run (telltale serve RUN) or its report")
