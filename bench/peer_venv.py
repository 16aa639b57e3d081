# SPDX-License-Identifier: Apache-2.0
"""Virtual environments of peers beside which we measure, made on first use: nothing of ours should see their packages."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def peer_python(name: str, folder: str, module: str, packages: list[str], *options: str) -> str | None:
    """An interpreter that has `module`, made with `options` of venv in `folder` of the checkout where it can be; None
    where it does not install."""
    python = ROOT / folder / "bin/python"
    has = [str(python), "-c", f"import {module}"]
    if python.exists() and subprocess.run(has, capture_output=True, check=False).returncode == 0:
        return str(python)
    print(f"bench: installing {name} into {folder}", flush=True)
    for command in (
        ["/usr/bin/python3", "-m", "venv", *options, str(ROOT / folder)],
        [str(python), "-m", "pip", "install", "--quiet", *packages],
        has,
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"bench: {name} does not install here ({reason}); it is left out", flush=True)
            return None
    return str(python)
