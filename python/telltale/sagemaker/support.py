# SPDX-License-Identifier: Apache-2.0
"""What of the profiler's vocabulary this Telltale can do. What it cannot is refused before the training starts,
since a profile that silently records nothing is worse than none.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from .profiler import DataloaderProfilingConfig, FrameworkProfile, ProfilerConfig

# Milliseconds between samples of the machine where the profiler is switched off: as seldom as can be.
_SELDOM_MS = 60000


def sampling_interval_ms(config: ProfilerConfig | None) -> int | None:
    """Milliseconds between two samples of the machine, None: Telltale's own.

    Raises:
        UnsupportedError: a profile of the framework that there is not.
    """
    if config is None:
        return None
    if config.disable_profiler:
        return _SELDOM_MS
    if config.framework_profile_params is not None:
        _check_profile(config.framework_profile_params)
    return config.system_monitor_interval_millis


def _check_profile(profile: FrameworkProfile) -> None:
    missing = [
        config for config in profile.metrics_configs if not isinstance(config, DataloaderProfilingConfig)
    ]
    if missing:
        names = ", ".join(config.name for config in missing)
        raise UnsupportedError(
            f"FrameworkProfile: {names}",
            "operators, Python functions and collective libraries are not profiled yet",
            "leave framework_profile_params out, or give it a dataloader_profiling_config alone: steps, "
            "their phases and data loading are recorded at every step anyway",
        )
