# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package. The recording calls (step, span, log) raise none of them."""


class TelltaleError(Exception):
    """Base of every exception that Telltale raises on purpose."""
