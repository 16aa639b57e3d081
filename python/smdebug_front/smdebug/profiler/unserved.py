# SPDX-License-Identifier: Apache-2.0
"""Names of the documentation that Telltale does not serve: they can be imported, and say what to do instead."""

from ..exceptions import SMDebugNotImplementedError


def unserved(name, instead):
    """A class of that name that cannot be made."""

    def __init__(self, *args, **kwargs):  # noqa: N807  Of the class made here.
        raise SMDebugNotImplementedError(f"{name} is not served by Telltale: {instead}")

    return type(name, (), {"__doc__": f"Not served: {instead}", "__init__": __init__})
