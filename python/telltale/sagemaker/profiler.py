# SPDX-License-Identifier: Apache-2.0
"""How closely to look at the machine and the framework: ProfilerConfig, FrameworkProfile and its parts."""

from __future__ import annotations

import enum
import json
import re
from typing import Any

from ..errors import ConfigError

# Milliseconds that SageMaker allows between two samples.
INTERVALS_MS = (100, 200, 500, 1000, 5000, 60000)


class PythonProfiler(enum.Enum):
    CPROFILE = "cprofile"
    PYINSTRUMENT = "pyinstrument"


class cProfileTimer(enum.Enum):  # noqa: N801  SageMaker's name.
    TOTAL_TIME = "total_time"
    CPU_TIME = "cpu_time"
    OFF_CPU_TIME = "off_cpu_time"
    DEFAULT = "default"


def _whole(what: str, value: Any, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigError(f"{what}: {value!r} is no whole number from {least}: write for example {least + 5}")


def _positive(what: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
        raise ConfigError(f"{what}: {value!r} is no number above 0: write for example 10")


class MetricsConfig:
    """One kind of profile, over a range of steps or of time.

    Args:
        start_step: from 0; num_steps: from 1.
        start_unix_time: seconds since the epoch; duration: seconds.
        profile_default_steps: take the steps that SageMaker takes for this kind.

    Raises:
        ConfigError: a range of steps and one of time, or a number out of range.
    """

    name = ""
    default_steps = (0, 1)

    def __init__(
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,
    ) -> None:
        kind = type(self).__name__
        _whole(f"{kind}: start_step", start_step, 0)
        _whole(f"{kind}: num_steps", num_steps, 1)
        _whole(f"{kind}: start_unix_time", start_unix_time, 0)
        _positive(f"{kind}: duration", duration)
        by_step = start_step is not None or num_steps is not None
        by_time = start_unix_time is not None or duration is not None
        if by_step and by_time:
            raise ConfigError(f"{kind}: a range of steps and one of time: give one of them")
        if profile_default_steps or not (by_step or by_time):
            start_step, num_steps = self.default_steps
            start_unix_time = duration = None
        self.start_step = start_step
        self.num_steps = num_steps
        self.start_unix_time = start_unix_time
        self.duration = duration

    def to_request(self) -> dict[str, Any]:
        """As SageMaker's profilerconfig.json has it."""
        if self.start_unix_time is not None or self.duration is not None:
            of_time = {"StartTimeInSecSinceEpoch": self.start_unix_time, "DurationInSeconds": self.duration}
            return {key: value for key, value in of_time.items() if value is not None}
        return {"StartStep": self.start_step or 0, "NumSteps": self.num_steps or 1}


class DetailedProfilingConfig(MetricsConfig):
    name = "DetailedProfilingConfig"
    default_steps = (5, 1)


class DataloaderProfilingConfig(MetricsConfig):
    """Further argument: metrics_regex, of the names of metrics to keep."""

    name = "DataloaderProfilingConfig"
    default_steps = (7, 1)

    def __init__(self, *args: Any, metrics_regex: str = ".*", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            re.compile(metrics_regex)
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"DataloaderProfilingConfig: metrics_regex {metrics_regex!r} is no pattern ({error}): write "
                'for example ".*"'
            ) from error
        self.metrics_regex = metrics_regex


class PythonProfilingConfig(MetricsConfig):
    """Further arguments: python_profiler and cprofile_timer, members of PythonProfiler and cProfileTimer."""

    name = "PythonProfilingConfig"
    default_steps = (9, 3)

    def __init__(
        self,
        *args: Any,
        python_profiler: PythonProfiler = PythonProfiler.CPROFILE,
        cprofile_timer: cProfileTimer = cProfileTimer.TOTAL_TIME,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(python_profiler, PythonProfiler) or not isinstance(cprofile_timer, cProfileTimer):
            raise ConfigError(
                "PythonProfilingConfig: write python_profiler=PythonProfiler.CPROFILE and "
                "cprofile_timer=cProfileTimer.TOTAL_TIME, or other members of these"
            )
        self.python_profiler = python_profiler
        self.cprofile_timer = cprofile_timer

    def to_request(self) -> dict[str, Any]:
        named = {"ProfilerName": self.python_profiler.value, "cProfileTimer": self.cprofile_timer.value}
        return {**super().to_request(), **named}


class HorovodProfilingConfig(MetricsConfig):
    name = "HorovodProfilingConfig"
    default_steps = (13, 1)


class SMDataParallelProfilingConfig(MetricsConfig):
    name = "SMDataParallelProfilingConfig"
    default_steps = (15, 1)


_ALL = (
    DetailedProfilingConfig,
    DataloaderProfilingConfig,
    PythonProfilingConfig,
    HorovodProfilingConfig,
    SMDataParallelProfilingConfig,
)


class FrameworkProfile:
    """What to profile in the framework: the kinds that are given; where none is, all of them over the range
    that is given, else each over its default steps.

    Args:
        local_path, file_max_size, file_close_interval, file_open_fail_threshold: taken, and not used.
        *_profiling_config: one kind each.
        start_step, num_steps, start_unix_time, duration: a range for all kinds.

    Raises:
        ConfigError: as of MetricsConfig, or something that is no such configuration.
    """

    def __init__(
        self,
        local_path: str = "/opt/ml/output/profiler",
        file_max_size: int = 10485760,
        file_close_interval: float = 60,
        file_open_fail_threshold: int = 50,
        detailed_profiling_config: DetailedProfilingConfig | None = None,
        dataloader_profiling_config: DataloaderProfilingConfig | None = None,
        python_profiling_config: PythonProfilingConfig | None = None,
        horovod_profiling_config: HorovodProfilingConfig | None = None,
        smdataparallel_profiling_config: SMDataParallelProfilingConfig | None = None,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
    ) -> None:
        given: list[MetricsConfig] = [
            config
            for config in (
                detailed_profiling_config,
                dataloader_profiling_config,
                python_profiling_config,
                horovod_profiling_config,
                smdataparallel_profiling_config,
            )
            if config is not None
        ]
        for config in given:
            if not isinstance(config, MetricsConfig):
                raise ConfigError(
                    f"FrameworkProfile: {config!r} is no configuration of a profile: write for example "
                    "DataloaderProfilingConfig()"
                )
        self.explicit = bool(given)
        self.local_path = local_path
        self.file_max_size = file_max_size
        self.file_close_interval = file_close_interval
        self.file_open_fail_threshold = file_open_fail_threshold
        self.metrics_configs: list[MetricsConfig] = given or [
            kind(start_step, num_steps, start_unix_time, duration) for kind in _ALL
        ]

    def to_request(self) -> dict[str, Any]:
        """As SageMaker's profilerconfig.json has it: the parts are texts."""
        parts = {config.name: json.dumps(config.to_request()) for config in self.metrics_configs}
        return {"DisableProfiler": False, "ProfilingParameters": {"LocalPath": self.local_path, **parts}}


class ProfilerConfig:
    """How the machine and the framework are watched.

    Args:
        s3_output_path: kept, and not used.
        system_monitor_interval_millis: between two samples of the machine; one of INTERVALS_MS, of None 500.
        framework_profile_params: a FrameworkProfile.
        disable_profiler: True: sample the machine as seldom as can be.

    Raises:
        ConfigError: another interval, or no FrameworkProfile.
    """

    def __init__(
        self,
        s3_output_path: str | None = None,
        system_monitor_interval_millis: int | None = None,
        framework_profile_params: FrameworkProfile | None = None,
        disable_profiler: bool = False,
    ) -> None:
        if system_monitor_interval_millis is not None and system_monitor_interval_millis not in INTERVALS_MS:
            allowed = ", ".join(map(str, INTERVALS_MS))
            raise ConfigError(
                f"ProfilerConfig: system_monitor_interval_millis {system_monitor_interval_millis!r}: write "
                f"one of {allowed}"
            )
        if framework_profile_params is not None and not isinstance(
            framework_profile_params, FrameworkProfile
        ):
            raise ConfigError(
                f"ProfilerConfig: framework_profile_params {framework_profile_params!r} is no "
                "FrameworkProfile: write FrameworkProfile(...)"
            )
        self.s3_output_path = s3_output_path
        self.system_monitor_interval_millis = system_monitor_interval_millis
        self.framework_profile_params = framework_profile_params
        self.disable_profiler = disable_profiler
