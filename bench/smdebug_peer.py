# SPDX-License-Identifier: Apache-2.0
"""SageMaker Debugger's library as a peer, in a virtual environment of its own (.venv-smdebug), made on
first use: it needs old packages that nothing of ours should see.
"""

import pathlib
import subprocess

SMDEBUG_VENV = pathlib.Path(__file__).resolve().parents[1] / ".venv-smdebug"
SMDEBUG_PACKAGES = ["smdebug==1.0.34", "pandas==2.2.3", "protobuf==3.20.3", "numpy<2"]


def smdebug_python() -> str | None:
    """An interpreter that has smdebug, made where it can be; None where it does not install."""
    python = SMDEBUG_VENV / "bin/python"
    has = [str(python), "-c", "import smdebug.pytorch"]
    if python.exists() and subprocess.run(has, capture_output=True, check=False).returncode == 0:
        return str(python)
    print("bench: installing smdebug into .venv-smdebug", flush=True)
    for command in (
        ["/usr/bin/python3", "-m", "venv", "--system-site-packages", str(SMDEBUG_VENV)],
        [str(python), "-m", "pip", "install", "--quiet", *SMDEBUG_PACKAGES],
        has,
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"bench: smdebug does not install here ({reason}); it is left out", flush=True)
            return None
    return str(python)
