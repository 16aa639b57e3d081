# SPDX-License-Identifier: Apache-2.0
"""Lets the tests import the harness, which is a folder of modules and no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
