# SPDX-License-Identifier: Apache-2.0
"""The names of sagemaker.debugger: change the import, keep the rest.

from telltale.sagemaker.debugger import CollectionConfig, DebuggerHookConfig, Rule, rule_configs
"""

from . import rule_configs
from .hook_config import CollectionConfig, DebuggerHookConfig, TensorBoardOutputConfig
from .profiler import (
    DataloaderProfilingConfig,
    DetailedProfilingConfig,
    FrameworkProfile,
    HorovodProfilingConfig,
    ProfilerConfig,
    PythonProfiler,
    PythonProfilingConfig,
    SMDataParallelProfilingConfig,
    cProfileTimer,
)
from .rules import ProfilerRule, Rule, RuleBase, get_default_profiler_rule

__all__ = [
    "CollectionConfig",
    "DataloaderProfilingConfig",
    "DebuggerHookConfig",
    "DetailedProfilingConfig",
    "FrameworkProfile",
    "HorovodProfilingConfig",
    "ProfilerConfig",
    "ProfilerRule",
    "PythonProfiler",
    "PythonProfilingConfig",
    "Rule",
    "RuleBase",
    "SMDataParallelProfilingConfig",
    "TensorBoardOutputConfig",
    "cProfileTimer",
    "get_default_profiler_rule",
    "rule_configs",
]
