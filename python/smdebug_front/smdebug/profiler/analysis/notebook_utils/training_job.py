# SPDX-License-Identifier: Apache-2.0
"""A training by its name: here the path of its run directory, or of a hook's out_dir."""

import os
import time

from ....exceptions import NoMoreProfilerData, SMDebugNotImplementedError
from ..utils.profiler_data_to_pandas import PandasFrame, run_directory


class TrainingJob:
    """training_job_name: path of a run directory or of an out_dir; `region` is ignored.

    Raises:
        SMDebugNotImplementedError: there is no such folder; Telltale asks no cloud for jobs.
    """

    def __init__(self, training_job_name, region=None):
        path = run_directory(os.fspath(training_job_name))
        if path is None:
            raise SMDebugNotImplementedError(
                f"TrainingJob({training_job_name!r}): Telltale knows no jobs of SageMaker: pass the path of a run "
                "directory"
            )
        self.name = training_job_name
        self.profiler_config = {"S3OutputPath": path}
        self.profiler_s3_output_path = path
        self._frame = PandasFrame(path)

    def _wait(self, has_rows):
        while not has_rows():
            if not self._frame.is_running():
                raise NoMoreProfilerData(time.time())
            time.sleep(0.5)

    def wait_for_sys_profiling_data_to_be_available(self):
        """Returns once there are system metrics.

        Raises:
            NoMoreProfilerData: the training ended without any.
        """
        self._wait(lambda: len(self._frame.get_all_system_metrics()))

    def wait_for_framework_profiling_data_to_be_available(self):
        """Returns once there are steps.

        Raises:
            NoMoreProfilerData: the training ended without any.
        """
        self._wait(lambda: len(self._frame.get_all_framework_metrics()))

    def get_config_and_profiler_s3_output_path(self):
        return self.profiler_config, self.profiler_s3_output_path

    def describe_training_job(self):
        """The state of the run under SageMaker's names."""
        states = {"running": "InProgress", "finished": "Completed", "killed": "Stopped"}
        state = states.get(self._frame.state(), "Failed")
        return {"TrainingJobName": self.name, "TrainingJobStatus": state, "SecondaryStatus": state}
