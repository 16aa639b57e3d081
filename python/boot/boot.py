# SPDX-License-Identifier: Apache-2.0
"""Runs a Python command line whose interpreter ignores PYTHONPATH (`python -I`, `-E`) or loads no
sitecustomize (`-S`): `python -I boot.py SCRIPT|-m MODULE|-c CODE [ARGS]` behaves as `python -I
SCRIPT ...` would.
"""

import os  # noqa: F401  Found in sys.modules by the others; with -S nobody has loaded it yet.
import sys

_here = __file__.rpartition("/")[0]
sys.path.insert(0, _here)
try:
    import telltale_boot
    import telltale_main

    telltale_boot.install()
    telltale_boot.route_children(__file__)
finally:
    sys.path.remove(_here)
# With -S we are on the path by PYTHONPATH too. The first entry is the script's folder where python
# puts one there, and is replaced below.
_own = 0 if sys.flags.isolated or getattr(sys.flags, "safe_path", False) else 1
sys.path[_own:] = [entry for entry in sys.path[_own:] if entry.rstrip("/") != _here]
telltale_main.main(__file__)
