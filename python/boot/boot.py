# SPDX-License-Identifier: Apache-2.0
"""Runs a Python command line whose interpreter ignores PYTHONPATH (`python -I`, `-E`):
`python -I boot.py SCRIPT|-m MODULE|-c CODE [ARGS]` behaves as `python -I SCRIPT ...` would.
"""

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
telltale_main.main(__file__)
