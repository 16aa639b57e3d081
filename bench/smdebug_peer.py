# SPDX-License-Identifier: Apache-2.0
"""SageMaker Debugger's library as a peer, in a virtual environment of its own (.venv-smdebug), made on
first use: it needs old packages that nothing of ours should see.
"""

from peer_venv import peer_python

SMDEBUG_PACKAGES = ["smdebug==1.0.34", "pandas==2.2.3", "protobuf==3.20.3", "numpy<2"]


def smdebug_python() -> str | None:
    """An interpreter that has smdebug, made where it can be; None where it does not install."""
    return peer_python(
        "smdebug", ".venv-smdebug", "smdebug.pytorch", SMDEBUG_PACKAGES, "--system-site-packages"
    )
