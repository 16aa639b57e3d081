# SPDX-License-Identifier: Apache-2.0
"""Opening a trial by its path."""

import os

from .._telltale.imported import ImportedSource
from .._telltale.recorder import pointers
from .._telltale.source import HookSource, RunSource
from ..exceptions import SMDebugNotImplementedError
from .trial import LocalTrial


def _is_run(path):
    return os.path.isfile(os.path.join(path, "run.json"))


def _folder_of_script(run):
    """The out_dir of a hook that the script of a LocalEstimator's job made of its configuration; None: it
    made none.
    """
    folder = os.path.join(f"{run}.job", "tensors")
    return folder if pointers(folder) else None


def _of_smdebug(path):
    """Whether the library smdebug of Amazon wrote this folder."""
    return not pointers(path) and os.path.isdir(os.path.join(path, "collections"))


def create_trial(
    path, name=None, profiler=False, output_dir="/opt/ml/processing/outputs/", range_steps=None, **kwargs
):
    """A trial of what was saved at `path`: the out_dir of a hook, a run directory of Telltale, or a folder that
    Amazon's smdebug wrote. Of the run of a LocalEstimator's job whose script has a hook of its own: what that
    saved. While the training goes on the trial grows. Waits until the hook has begun.

    Args:
        path: of a local folder.
        name: of the trial; the last part of the path without.
        range_steps: (first, end) of the steps over all modes, either may be None.

    Raises:
        SMDebugNotImplementedError: a bucket; profiler=True.
        IndexReaderException: what Amazon's smdebug wrote cannot be read.
        MissingCollectionFiles: the training has ended, and a worker of it never began to save.
    """
    path = os.fspath(path).strip()
    if profiler:
        raise SMDebugNotImplementedError(
            "create_trial(profiler=True): open the run with telltale.open(), or its system metrics with "
            "smdebug.profiler.analysis.utils.profiler_data_to_pandas.PandasFrame"
        )
    if path.startswith("s3://"):
        raise SMDebugNotImplementedError(
            f"create_trial({path!r}): only local folders can be read: copy it first (aws s3 sync)"
        )
    path = os.path.abspath(os.path.expanduser(path))
    name = name if name is not None else os.path.basename(path)
    if _is_run(path):
        folder = _folder_of_script(path)
        source = RunSource(path) if folder is None else HookSource(folder)
    elif _of_smdebug(path):
        source = ImportedSource(path)
    else:
        source = HookSource(path)
    return LocalTrial(name, path, source, range_steps)
