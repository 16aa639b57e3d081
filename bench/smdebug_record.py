# SPDX-License-Identifier: Apache-2.0
"""Writes what SageMaker Debugger's library writes of one small tensor, with that library's own writer.

usage: smdebug_record.py FOLDER STEPS    (an interpreter that has smdebug: bench/smdebug_peer.py)
"""

import pathlib
import sys

import numpy
from smdebug.core.collection_manager import CollectionManager
from smdebug.core.config_constants import DEFAULT_COLLECTIONS_FILE_NAME
from smdebug.core.modes import ModeKeys
from smdebug.core.writer import FileWriter


def main() -> None:
    folder, steps = sys.argv[1], int(sys.argv[2])
    collections = CollectionManager()
    collections.add("weights")
    collections.get("weights").tensor_names = ["small"]
    collections.update_meta({"num_workers": 1})
    collections.export(folder, DEFAULT_COLLECTIONS_FILE_NAME)
    for step in range(steps):
        writer = FileWriter(trial_dir=folder, step=step, worker="worker_0")
        values = numpy.arange(16, dtype=numpy.float32) + step
        writer.write_tensor(tdata=values, tname="small", mode=ModeKeys.TRAIN, mode_step=step)
        writer.close()
    (pathlib.Path(folder) / "training_job_end.ts").touch()


main()
