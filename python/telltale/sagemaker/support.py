# SPDX-License-Identifier: Apache-2.0
"""What of the profiler's vocabulary this Telltale can do. What it cannot is refused before the training starts,
since a profile that silently records nothing is worse than none.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from .profiler import (
    FrameworkProfile,
    HorovodProfilingConfig,
    ProfilerConfig,
    SMDataParallelProfilingConfig,
)

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
    unserved = (HorovodProfilingConfig, SMDataParallelProfilingConfig)
    missing = [config for config in profile.metrics_configs if isinstance(config, unserved)]
    # A profile of all kinds asks for these of trainings that use such a library.
    if missing and profile.explicit:
        names = ", ".join(config.name for config in missing)
        raise UnsupportedError(
            f"FrameworkProfile: {names}",
            "collective libraries are not profiled by themselves",
            "leave it out of framework_profile_params: a detailed_profiling_config has the collectives that "
            "torch.profiler sees",
        )
