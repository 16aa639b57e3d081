# SPDX-License-Identifier: Apache-2.0
"""What scripts written for SageMaker Debugger import as `smdebug`, served by Telltale.

On PYTHONPATH (`PYTHONPATH=$(telltale smdebug-path) telltale run -- python train.py`) this package records by
the configuration of the script's own hook, into the run of Telltale. Outside `telltale run` hooks do
nothing; trials read what was recorded, anywhere. docs/guide/smdebug.md says what is there.
"""

from ._version import __version__
from .core.collection import CollectionKeys
from .core.modes import ModeKeys as modes  # noqa: N813  The documented name.
from .core.reduction_config import ReductionConfig
from .core.save_config import SaveConfig, SaveConfigMode

__all__ = ["CollectionKeys", "ReductionConfig", "SaveConfig", "SaveConfigMode", "__version__", "modes"]
