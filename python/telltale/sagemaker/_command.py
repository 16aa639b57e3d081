# SPDX-License-Identifier: Apache-2.0
"""The command telltale of this installation, and what it prints as JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ReadError

_PARTIAL = 7


def path() -> str:
    """The command: of the installation that TELLTALE_PREFIX names, of our own, or the one on PATH.

    Raises:
        ConfigError: there is none.
    """
    prefix = os.environ.get("TELLTALE_PREFIX")
    found = [Path(prefix) / "bin" / "telltale"] if prefix else []
    # lib/telltale/python/telltale/sagemaker/_command.py of an installation
    parents = Path(__file__).resolve().parents
    if len(parents) > 5:
        found.append(parents[5] / "bin" / "telltale")
    for candidate in found:
        if os.access(candidate, os.X_OK):
            return str(candidate)
    on_path = shutil.which("telltale")
    if on_path is None:
        raise ConfigError(
            "telltale.sagemaker: the command telltale is not there: put it on PATH, or name the folder of "
            "the installation in TELLTALE_PREFIX"
        )
    return on_path


def smdebug_path() -> str | None:
    """The folder that makes `import smdebug` Telltale's, None: this installation has none."""
    done = subprocess.run(
        [path(), "smdebug-path"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    folder = done.stdout.strip()
    return folder if done.returncode == 0 and os.path.isdir(folder) else None


def ask(*arguments: str) -> Any:
    """What `telltale ARGUMENTS --json` prints.

    Raises:
        ReadError: it could not say.
    """
    done = subprocess.run(
        [path(), *arguments, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        if done.returncode in (0, _PARTIAL):
            return json.loads(done.stdout)
    except ValueError:
        pass
    raise ReadError(done.returncode or 3, done.stderr.strip() or f"telltale {' '.join(arguments)}: no answer")
