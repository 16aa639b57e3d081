# SPDX-License-Identifier: Apache-2.0
"""For all folders of tests: what they share lies in support; a test ends what it started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
pytest_plugins = ["leftovers"]
